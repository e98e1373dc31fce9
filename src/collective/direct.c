/*
 * direct.c: memory of members of one host.  A member offers its buffer in its line of the
 * board; others read it (and, in an allreduce, write it) where it is: through the mapping
 * of the member's arena, or by process_vm_readv/writev (CMA) when it is private.
 */
#include "collective/board_int.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

enum board_kind direct_kind(const struct coll_task *t, const void *data, size_t bytes,
                            uint64_t *at_p)
{
    const struct mesh *mesh = t->team->mesh;

    if (bytes == 0)
        return BOARD_NONE;
    if (mesh_find(mesh, data, bytes, at_p))
        return BOARD_MAPPED;
    *at_p = (uint64_t)(uintptr_t)data;
    return mesh_can_cma(mesh) ? BOARD_CMA : BOARD_NONE;
}

size_t direct_slot_bytes(const struct coll_task *t, size_t bytes)
{
    return bytes > LINE_INLINE && bytes <= t->team->slot_bytes ? bytes : 0;
}

void *direct_stage(struct coll_task *t, size_t bytes, uint64_t *at_p)
{
    void *staged = scratch_get_shared(t->team->scratch, bytes);

    if (staged == NULL || mesh_find(t->team->mesh, staged, bytes, at_p))
        return staged;
    scratch_put(t->team->scratch, staged);
    return NULL;
}

enum hvd_status direct_offer_far(struct coll_task *t, const void *data, size_t bytes,
                                 size_t stage_limit, void **staged_p,
                                 struct hvd_error *err)
{
    struct board_line *line = board_line(t, t->team->me);
    enum board_kind kind = direct_kind(t, data, bytes, &line->at.in);

    line->in_kind = (uint8_t)kind;
    if (kind == BOARD_MAPPED || (kind == BOARD_CMA && bytes > stage_limit))
        return HVD_OK;
    *staged_p = direct_stage(t, bytes, &line->at.in);
    if (*staged_p != NULL)
        line->in_kind = BOARD_MAPPED;
    else if (kind != BOARD_CMA)
        return error_set(err, HVD_NOMEM, -1, "no shared memory for %zu bytes", bytes);
    return HVD_OK;
}

/* Measured: with few members a copy through shared memory beats CMA (1.3 us a call, 0.3
 * to 0.5 a page) only while it stays in L2; with many, each of which reads a small part
 * of everything, up to the size where it no longer fits in L3. */
#define STAGE_LIMIT_FEW ((size_t)64 << 10)
#define STAGE_LIMIT_MANY ((size_t)32 << 20)

size_t direct_stage_limit(const struct coll_team *team)
{
    return team->count <= 4 ? STAGE_LIMIT_FEW : STAGE_LIMIT_MANY;
}

enum hvd_status direct_offer(struct coll_task *t, const void *data, size_t bytes,
                             size_t stage_limit, void **staged_p, struct hvd_error *err)
{
    struct board_line *line = board_line(t, t->team->me);

    if (bytes <= LINE_INLINE) {
        line->in_kind = bytes > 0 ? BOARD_INLINE : BOARD_NONE;
        if (bytes > 0)
            memcpy(line->bytes, data, bytes);
        return HVD_OK;
    }
    if (bytes <= t->team->slot_bytes) {
        line->in_kind = BOARD_SLOT;
        memcpy(board_slot(t, t->team->me), data, bytes);
        return HVD_OK;
    }
    TRY(direct_offer_far(t, data, bytes, stage_limit, staged_p, err));
    if (*staged_p != NULL)
        red_copy(*staged_p, data, bytes);
    return HVD_OK;
}

bool direct_is_exposed(const struct coll_task *t)
{
    return board_line(t, t->team->me)->in_kind >= BOARD_MAPPED;
}

static enum hvd_status place_mapped(const struct coll_task *t, int member, uint64_t at,
                                    size_t bytes, struct direct_place *place_p,
                                    struct hvd_error *err)
{
    struct coll_team *team = t->team;

    place_p->at = mesh_address(team->mesh, team->local_ranks[member], at, bytes);
    if (place_p->at == NULL)
        return error_set(err, HVD_PROTO, team->ranks[member],
                         "rank %d offers %zu bytes outside its memory",
                         team->ranks[member], bytes);
    return HVD_OK;
}

enum hvd_status direct_place(const struct coll_task *t, int member, bool out,
                             size_t bytes, struct direct_place *place_p,
                             struct hvd_error *err)
{
    struct board_line *line = board_line(t, member);
    uint64_t at = out ? line->at.out : line->at.in;

    *place_p = (struct direct_place){.kind = out ? line->out_kind : line->in_kind,
                                     .all = t->all_bytes};
    switch (place_p->kind) {
    case BOARD_INLINE:
        place_p->at = (char *)line->bytes;
        return HVD_OK;
    case BOARD_SLOT:
        place_p->at = board_slot(t, member);
        return HVD_OK;
    case BOARD_MAPPED:
        return place_mapped(t, member, at, bytes, place_p, err);
    case BOARD_CMA:
        place_p->remote = at;
        place_p->pid = mesh_pid(t->team->mesh, t->team->local_ranks[member]);
        return HVD_OK;
    default:
        return HVD_OK;
    }
}

/* A process that has ended: the verdict that names it is on its way. */
static enum hvd_status cma_failed(const char *what, pid_t pid, struct hvd_error *err)
{
    if (errno == ESRCH)
        return HVD_AGAIN;
    return error_sys(err, -1, "%s of process %d failed", what, (int)pid);
}

/* The kernel may move less than asked for. */
enum hvd_status direct_read(const struct direct_place *place, size_t offset,
                            void *dst, size_t bytes, struct hvd_error *err)
{
    if (place->at != NULL) {
        red_copy_part(dst, place->at + offset, bytes, place->all);
        return HVD_OK;
    }
    for (size_t done = 0; done < bytes;) {
        struct iovec here = {(char *)dst + done, bytes - done};
        struct iovec there = {(void *)(uintptr_t)(place->remote + offset + done),
                              bytes - done};
        ssize_t n = process_vm_readv(place->pid, &here, 1, &there, 1, 0);

        if (n <= 0)
            return cma_failed("process_vm_readv", place->pid, err);
        done += (size_t)n;
    }
    return HVD_OK;
}

enum hvd_status direct_write(const struct direct_place *place, size_t offset,
                             const void *src, size_t bytes, struct hvd_error *err)
{
    if (place->at != NULL) {
        red_copy_part(place->at + offset, src, bytes, place->all);
        return HVD_OK;
    }
    for (size_t done = 0; done < bytes;) {
        struct iovec here = {(char *)src + done, bytes - done};
        struct iovec there = {(void *)(uintptr_t)(place->remote + offset + done),
                              bytes - done};
        ssize_t n = process_vm_writev(place->pid, &here, 1, &there, 1, 0);

        if (n <= 0)
            return cma_failed("process_vm_writev", place->pid, err);
        done += (size_t)n;
    }
    return HVD_OK;
}

/* ---- Reductions -------------------------------------------------------------------- */

/* 1.3 us per call and 0.55 per page (PERFORMANCE 7.4): never below 16 KiB. */
size_t direct_block(const struct coll_task *t)
{
    size_t bytes = ((size_t)512 << 10) / (size_t)t->team->count;

    bytes = bytes > 131072 ? 131072 : bytes < 16384 ? 16384 : bytes / 4096 * 4096;
    return bytes / task_type_bytes(t->call.dtype);
}

static bool is_reachable(const struct coll_task *t, const struct direct_place *in)
{
    for (int i = 0; i < t->team->count; i++)
        if (in[i].at == NULL)
            return false;
    return true;
}

static enum hvd_status reduce_block(struct coll_task *t, const struct direct_place *in,
                                    void *const *dst, int ndst, size_t first,
                                    size_t count, char *room, struct hvd_error *err)
{
    size_t unit = task_type_bytes(t->call.dtype), room_bytes = direct_block(t) * unit;
    const void **src = t->team->src;

    for (int i = 0; i < t->team->count; i++) {
        if (in[i].at != NULL) {
            src[i] = in[i].at + first * unit;
            continue;
        }
        src[i] = room + (size_t)i * room_bytes;
        TRY(direct_read(&in[i], first * unit, (void *)src[i], count * unit, err));
    }
    return order_reduce(t, src, dst, ndst, count, false, err);
}

static enum hvd_status reduce_private(struct coll_task *t, const struct direct_place *in,
                                      void *const *dst, int ndst, size_t first,
                                      size_t count, struct hvd_error *err)
{
    size_t unit = task_type_bytes(t->call.dtype), block = direct_block(t);
    char *room = scratch_get(t->team->scratch, (size_t)t->team->count * block * unit);
    void **to = t->team->dst + t->team->count;
    enum hvd_status status = HVD_OK;

    if (room == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory to read other ranks' buffers");
    for (size_t done = 0; done < count && status == HVD_OK; done += block) {
        size_t n = count - done < block ? count - done : block;

        for (int i = 0; i < ndst; i++)
            to[i] = (char *)dst[i] + done * task_type_bytes(t->out_type);
        status = reduce_block(t, in, to, ndst, first + done, n, room, err);
    }
    scratch_put(t->team->scratch, room);
    return status;
}

enum hvd_status direct_reduce(struct coll_task *t, const struct direct_place *in,
                              void *const *dst, int ndst, size_t first, size_t count,
                              bool stream, struct hvd_error *err)
{
    size_t unit = task_type_bytes(t->call.dtype);
    const void **src = t->team->src;

    if (!is_reachable(t, in))
        return reduce_private(t, in, dst, ndst, first, count, err);
    for (int i = 0; i < t->team->count; i++)
        src[i] = in[i].at + first * unit;
    return order_reduce(t, src, dst, ndst, count, stream, err);
}
