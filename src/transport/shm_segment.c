/*
 * shm_segment.c: the memory that the ranks of a host share, and its mapping.
 *
 *   region, struct control per local rank | map of those who have left | rings, one per
 *   ordered pair | board area
 *
 * 1. One memfd, sized, then sealed against shrinking and growing, so that no member can
 *    take pages away under another one.
 * 2. Everything before the board area is taken at once; the board area stays sparse until
 *    mesh_board_reserve: a full memory is an error in a call, never a SIGBUS.
 * 3. The layout follows from the number of ranks and the board's size; nothing of it is
 *    read from shared memory.
 */
#include "transport_int.h"

#include "base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096u

static size_t round_up(size_t n)
{
    return (n + PAGE - 1) & ~(size_t)(PAGE - 1);
}

void region_layout(struct region_layout *out, int local_size, int size, size_t board_bytes)
{
    size_t n = (size_t)local_size;

    out->ring_bytes = ring_bytes_for(local_size);
    out->left = sizeof(struct region) + n * sizeof(struct control);
    out->rings = round_up(out->left + left_words(size) * sizeof(uint64_t));
    out->board = round_up(out->rings + n * n * out->ring_bytes);
    out->board_bytes = board_bytes;
    out->bytes = round_up(out->board + board_bytes);
}

/* A limit on file sizes counts for memfds, too, and exceeding it is a signal. */
static bool fits_limit(size_t bytes)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
           bytes <= limit.rlim_cur;
}

static int sealed_memfd(const char *name, size_t bytes)
{
    int fd;

    if (!fits_limit(bytes)) {
        errno = EFBIG;
        return -1;
    }
    fd = FAULT("shm.create") ? -1 : memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    if (ftruncate(fd, (off_t)bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static enum hvd_status no_memory(struct hvd_error *err, const char *what, int code)
{
    return error_set(err, HVD_NOMEM, -1, "shared memory, %s: %s", what, strerror(code));
}

enum hvd_status region_create(const struct region_layout *layout, int *fd_p,
                              struct hvd_error *err)
{
    int fd = sealed_memfd("hvd-host", layout->bytes), code;

    if (fd < 0)
        return no_memory(err, "creating it", errno);
    do
        code = FAULT("shm.reserve") ? errno
                                    : posix_fallocate(fd, 0, (off_t)layout->board);
    while (code == EINTR);
    if (code != 0) {
        close(fd);
        return no_memory(err, "taking its pages", code);
    }
    *fd_p = fd;
    return HVD_OK;
}

/* Rule 1, seen from those who did not make it. */
static enum hvd_status check(int fd, size_t bytes, struct hvd_error *err)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS), need = F_SEAL_SHRINK | F_SEAL_GROW;

    if (fstat(fd, &st) != 0 || seals < 0)
        return no_memory(err, "looking at it", errno);
    if ((seals & need) != need || (size_t)st.st_size != bytes)
        return error_set(err, HVD_PROTO, -1,
                         "shared memory has %lld bytes and seals %x, not %zu and %x",
                         (long long)st.st_size, (unsigned)seals, bytes, (unsigned)need);
    return HVD_OK;
}

static void *map(int fd, size_t bytes)
{
    if (FAULT("shm.map"))
        return MAP_FAILED;
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
}

enum hvd_status region_map(struct host_share *h, int fd, struct hvd_error *err)
{
    void *at;

    TRY(check(fd, h->layout.bytes, err));
    at = map(fd, h->layout.bytes);
    if (at == MAP_FAILED)
        return no_memory(err, "mapping it", errno);
    madvise(at, h->layout.bytes, MADV_DONTFORK);
    madvise(at, h->layout.bytes, MADV_DONTDUMP);
    h->region = at;
    return HVD_OK;
}

enum hvd_status region_map_arena(struct host_share *h, int local_rank, int fd, size_t bytes,
                                 struct hvd_error *err)
{
    void *at;

    TRY(check(fd, bytes, err));
    at = map(fd, bytes);
    if (at == MAP_FAILED)
        return no_memory(err, "mapping a peer's", errno);
    madvise(at, bytes, MADV_DONTFORK);
    madvise(at, bytes, MADV_DONTDUMP);
    h->arenas[local_rank] = at;
    h->arena_bytes[local_rank] = bytes;
    return HVD_OK;
}

char *host_ring(const struct host_share *h, int from, int to)
{
    size_t index = (size_t)from * (size_t)h->count + (size_t)to;

    return (char *)h->region + h->layout.rings + index * h->layout.ring_bytes;
}

void host_release(struct host_share *h)
{
    for (int i = 0; i < h->count; i++) {
        if (h->doorbells != NULL && h->doorbells[i] >= 0)
            fork_close(h->doorbells[i]);
        if (h->arenas != NULL && h->arenas[i] != NULL && i != h->self)
            munmap(h->arenas[i], h->arena_bytes[i]);
    }
    touch_release(h);
    if (h->region != NULL)
        munmap(h->region, h->layout.bytes);
    if (h->fd >= 0)
        fork_close(h->fd);
    if (h->alarm >= 0)
        fork_close(h->alarm);
    free(h->doorbells);
    free(h->arenas);
    free(h->arena_bytes);
    free(h->pids);
    *h = (struct host_share){.fd = -1, .alarm = -1};
}

/* ---- What the mesh offers of it -------------------------------------------------- */

void *mesh_board(const struct mesh *m, size_t *bytes_p)
{
    if (bytes_p != NULL)
        *bytes_p = m->host.region != NULL ? m->host.layout.board_bytes : 0;
    return m->host.region != NULL ? (char *)m->host.region + m->host.layout.board : NULL;
}

enum hvd_status mesh_board_reserve(struct mesh *m, size_t offset, size_t bytes,
                                   struct hvd_error *err)
{
    const struct host_share *h = &m->host;
    int code;

    if (h->region == NULL || offset > h->layout.board_bytes ||
        bytes > h->layout.board_bytes - offset)
        return error_set(err, HVD_INVALID, -1, "no board area at %zu + %zu", offset,
                         bytes);
    if (bytes == 0 || h->fd < 0)
        return HVD_OK;
    do
        code = FAULT("shm.reserve")
                   ? errno
                   : posix_fallocate(h->fd, (off_t)(h->layout.board + offset),
                                     (off_t)bytes);
    while (code == EINTR);
    return code == 0 ? HVD_OK : no_memory(err, "taking pages of the board area", code);
}

bool mesh_find(const struct mesh *m, const void *p, size_t bytes, uint64_t *offset_p)
{
    const struct host_share *h = &m->host;
    const char *base = h->arenas != NULL ? h->arenas[h->self] : NULL;
    size_t offset = (size_t)((uintptr_t)p - (uintptr_t)base);

    if (base == NULL || offset > h->arena_bytes[h->self] ||
        bytes > h->arena_bytes[h->self] - offset)
        return false;
    *offset_p = offset;
    return true;
}

void *mesh_address(const struct mesh *m, int local_rank, uint64_t offset, size_t bytes)
{
    const struct host_share *h = &m->host;

    if (local_rank < 0 || local_rank >= h->count || h->arenas == NULL ||
        h->arenas[local_rank] == NULL || offset > h->arena_bytes[local_rank] ||
        bytes > h->arena_bytes[local_rank] - offset)
        return NULL;
    return h->arenas[local_rank] + offset;
}

bool mesh_can_cma(const struct mesh *m)
{
    return m->host.can_cma;
}

pid_t mesh_pid(const struct mesh *m, int local_rank)
{
    const struct host_share *h = &m->host;

    return local_rank < 0 || local_rank >= h->count || h->pids == NULL
               ? -1
               : h->pids[local_rank];
}
