/*
 * arena.c: the memory of this process that its local peers can map: hvd_alloc.
 *
 * One memfd with a large sparse size, made at first need and kept until the process ends.
 * It is managed in blocks of 64 KiB:
 *
 * 1. A large allocation is a run of blocks; a small one (up to half a block) is a piece of
 *    a block that is cut into equal pieces.
 * 2. Free runs are joined with their neighbours; the first and the last block of a run
 *    hold its length.
 * 3. Pages are taken (posix_fallocate) before memory is handed out, so that touching it
 *    cannot fail.  Blocks that were given back keep their pages, up to KEEP_BYTES in all:
 *    fresh pages cost more than clearing old ones.  The rest goes back to the system.
 *    Results and staging are written over as a whole, and take old pages as they are.
 * 4. All bookkeeping is private memory: peers can write into the arena.
 * 5. A forked child sees the memory but neither takes nor gives any.
 */
#include "transport_int.h"

#include "base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define BLOCK (64u << 10)
#define SMALLEST 64u                    /* bytes; also the alignment */
#define CLASSES 10                      /* 64 B .. 32 KiB */
#define KEEP_BYTES (256u << 20)

enum block_state { BLOCK_FREE, BLOCK_HEAD, BLOCK_INNER, BLOCK_CUT };

struct block {
    uint32_t run;                       /* blocks of the run: free ends, heads */
    uint8_t state;                      /* enum block_state */
    uint8_t class;                      /* of a cut block */
    bool dirty;                         /* has pages, with old bytes in them */
};

/* A block cut into pieces; in the list of its class while it has a free one. */
struct cut {
    struct list node;
    uint32_t block;
    uint32_t used;
    uint64_t map[BLOCK / SMALLEST / 64];        /* set: in use */
};

static struct {
    pthread_mutex_t lock;               /* guards everything below */
    bool tried;
    unsigned born;                      /* fork_count() of the process that owns it */
    int fd;
    char *_Atomic base;
    size_t bytes;
    uint32_t blocks, top;               /* blocks from top on were never used */
    uint32_t kept;                      /* free blocks that are dirty */
    struct block *map;
    struct cut **cuts;                  /* by block */
    struct list partial[CLASSES];
} arena = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static size_t default_bytes(void)
{
    size_t half = (size_t)sysconf(_SC_PHYS_PAGES) / 2 * (size_t)sysconf(_SC_PAGESIZE);
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < half)
        half = (size_t)limit.rlim_cur;
    return half;
}

static void *map_private(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return at == MAP_FAILED ? NULL : at;
}

static bool map_all(size_t bytes)
{
    void *at = MAP_FAILED;

    arena.fd = FAULT("arena.create")
                   ? -1
                   : memfd_create("hvd-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (arena.fd >= 0 && ftruncate(arena.fd, (off_t)bytes) == 0 &&
        fcntl(arena.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                  arena.fd, 0);
    if (at == MAP_FAILED)
        return false;
    /* A core dump would hold all of it, used or not: half of the machine's memory. */
    madvise(at, bytes, MADV_DONTDUMP);
    arena.map = map_private(bytes / BLOCK * sizeof *arena.map);
    arena.cuts = map_private(bytes / BLOCK * sizeof *arena.cuts);
    if (arena.map == NULL || arena.cuts == NULL) {
        munmap(at, bytes);
        return false;
    }
    atomic_store(&arena.base, at);
    return true;
}

/* Once in the life of a process; the first caller's limit counts. */
static void make(size_t limit)
{
    size_t bytes = limit > 0 ? limit : default_bytes();

    if (arena.tried)
        return;
    arena.tried = true;
    fork_setup();
    arena.born = fork_count();
    bytes = bytes / BLOCK * BLOCK;
    if (bytes > (size_t)UINT32_MAX / 2 * BLOCK)
        bytes = (size_t)UINT32_MAX / 2 * BLOCK;
    for (int i = 0; i < CLASSES; i++)
        list_init(&arena.partial[i]);
    if (bytes == 0 || !map_all(bytes)) {
        if (arena.fd >= 0)
            close(arena.fd);
        arena.fd = -1;
        return;
    }
    fork_add(arena.fd);
    arena.bytes = bytes;
    arena.blocks = (uint32_t)(bytes / BLOCK);
}

static bool is_ours(void)
{
    return atomic_load(&arena.base) != NULL && arena.born == fork_count();
}

/* ---- Runs of blocks -------------------------------------------------------------- */

static void set_run(uint32_t at, uint32_t run, enum block_state state)
{
    for (uint32_t i = 0; i < run; i++)
        arena.map[at + i].state =
            (uint8_t)(state == BLOCK_HEAD && i > 0 ? BLOCK_INNER : state);
    arena.map[at].run = arena.map[at + run - 1].run = run;
}

/* First fit, else from the top.  UINT32_MAX: none. */
static uint32_t find_run(uint32_t run)
{
    for (uint32_t at = 0; at < arena.top; at += arena.map[at].run) {
        uint32_t have = arena.map[at].run;

        if (arena.map[at].state != BLOCK_FREE || have < run)
            continue;
        if (have > run)
            set_run(at + run, have - run, BLOCK_FREE);
        return at;
    }
    if (run > arena.blocks - arena.top)
        return UINT32_MAX;
    arena.top += run;
    return arena.top - run;
}

static void give_pages_back(uint32_t at, uint32_t run)
{
    if (fallocate(arena.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  (off_t)at * BLOCK, (off_t)run * BLOCK) != 0)
        return;                         /* they stay dirty, which is only memory */
    for (uint32_t i = 0; i < run; i++)
        arena.map[at + i].dirty = false;
}

static void free_run(uint32_t at, uint32_t run)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < run; i++)
        kept += arena.map[at + i].dirty;
    if (arena.kept + kept > KEEP_BYTES / BLOCK)
        give_pages_back(at, run);
    for (uint32_t i = 0; i < run; i++)
        arena.kept += arena.map[at + i].dirty;
    if (at > 0 && arena.map[at - 1].state == BLOCK_FREE) {
        run += arena.map[at - 1].run;
        at -= arena.map[at - 1].run;
    }
    if (at + run < arena.top && arena.map[at + run].state == BLOCK_FREE)
        run += arena.map[at + run].run;
    set_run(at, run, BLOCK_FREE);
}

static int take_pages(uint32_t at, uint32_t run)
{
    int code;

    do
        code = FAULT("arena.reserve") ? errno
                                      : posix_fallocate(arena.fd, (off_t)at * BLOCK,
                                                        (off_t)run * BLOCK);
    while (code == EINTR);
    return code;
}

/* Rule 3: the first `bytes` are cleared where their pages are old, missing pages are taken. */
static bool prepare(uint32_t at, uint32_t run, size_t bytes)
{
    char *base = atomic_load(&arena.base);

    for (uint32_t i = 0, n; i < run; i += n) {
        bool dirty = arena.map[at + i].dirty;
        size_t offset = (size_t)i * BLOCK;

        for (n = 1; i + n < run && arena.map[at + i + n].dirty == dirty; n++)
            ;
        if (dirty) {
            size_t clear = (size_t)n * BLOCK;

            if (offset < bytes)
                memset(base + (size_t)at * BLOCK + offset, 0,
                       clear < bytes - offset ? clear : bytes - offset);
            arena.kept -= n;
        } else if (take_pages(at + i, n) != 0) {
            return false;
        }
        for (uint32_t k = 0; k < n && !dirty; k++)
            arena.map[at + i + k].dirty = true;
    }
    return true;
}

static uint32_t take_run(uint32_t run, size_t bytes, enum block_state state)
{
    uint32_t at = find_run(run);

    if (at == UINT32_MAX)
        return at;
    set_run(at, run, state);
    if (prepare(at, run, bytes))
        return at;
    /* Part of it may have pages now; what had some before was counted down. */
    arena.kept = 0;
    for (uint32_t i = 0; i < arena.top; i += arena.map[i].run)
        for (uint32_t k = 0; k < arena.map[i].run && arena.map[i].state == BLOCK_FREE; k++)
            arena.kept += arena.map[i + k].dirty;
    give_pages_back(at, run);
    free_run(at, run);
    return UINT32_MAX;
}

/* ---- Pieces of blocks ------------------------------------------------------------ */

static int class_of(size_t bytes)
{
    int class = 0;

    while (((size_t)SMALLEST << class) < bytes)
        class++;
    return class;
}

static struct cut *cut_new(int class)
{
    struct cut *c = calloc(1, sizeof *c);

    if (c == NULL)
        return NULL;
    c->block = take_run(1, 0, BLOCK_CUT);
    if (c->block == UINT32_MAX) {
        free(c);
        return NULL;
    }
    arena.map[c->block].class = (uint8_t)class;
    arena.cuts[c->block] = c;
    list_append(&arena.partial[class], &c->node);
    return c;
}

static void *take_piece(size_t bytes, bool clear)
{
    int class = class_of(bytes);
    uint32_t piece = SMALLEST << class, pieces = BLOCK / piece, i = 0;
    struct cut *c;
    char *at;

    if (list_is_empty(&arena.partial[class]) && cut_new(class) == NULL)
        return NULL;
    c = list_entry(arena.partial[class].next, struct cut, node);
    while (c->map[i / 64] == UINT64_MAX)
        i += 64;
    i += (uint32_t)__builtin_ctzll(~c->map[i / 64]);
    c->map[i / 64] |= UINT64_C(1) << i % 64;
    if (++c->used == pieces)
        list_remove(&c->node);
    at = atomic_load(&arena.base) + (size_t)c->block * BLOCK + (size_t)i * piece;
    if (clear)
        memset(at, 0, bytes);
    return at;
}

static void free_piece(uint32_t block, size_t offset)
{
    struct cut *c = arena.cuts[block];
    int class = arena.map[block].class;
    uint32_t piece = SMALLEST << class, pieces = BLOCK / piece;
    uint32_t i = (uint32_t)(offset / piece);

    BUG_ON(offset % piece != 0 || !(c->map[i / 64] >> i % 64 & 1));
    c->map[i / 64] &= ~(UINT64_C(1) << i % 64);
    if (c->used-- == pieces)
        list_append(&arena.partial[class], &c->node);
    if (c->used > 0)
        return;
    list_remove(&c->node);
    arena.cuts[block] = NULL;
    free(c);
    free_run(block, 1);
}

/* ---- Interface ------------------------------------------------------------------- */

int arena_descriptor(size_t limit, size_t *bytes_p)
{
    int fd;

    pthread_mutex_lock(&arena.lock);
    make(limit);
    fd = is_ours() ? arena.fd : -1;
    *bytes_p = arena.bytes;
    pthread_mutex_unlock(&arena.lock);
    return fd;
}

void *arena_base(size_t *bytes_p)
{
    *bytes_p = arena.bytes;
    return atomic_load(&arena.base);
}

static void *take(size_t bytes, bool clear)
{
    size_t run = (bytes + BLOCK - 1) / BLOCK;
    uint32_t at;

    make(0);
    if (!is_ours() || bytes > arena.bytes)
        return NULL;
    if (bytes <= BLOCK / 2)
        return take_piece(bytes > 0 ? bytes : 1, clear);
    at = take_run((uint32_t)run, clear ? bytes : 0, BLOCK_HEAD);
    return at == UINT32_MAX ? NULL : atomic_load(&arena.base) + (size_t)at * BLOCK;
}

static void *alloc(size_t bytes, bool clear)
{
    void *p;

    if (atomic_load(&arena.base) != NULL && !is_ours())
        return NULL;                    /* rule 5; the lock may be held by nobody */
    pthread_mutex_lock(&arena.lock);
    p = take(bytes, clear);
    pthread_mutex_unlock(&arena.lock);
    return p;
}

void *arena_alloc(size_t bytes)
{
    return alloc(bytes, true);
}

void *arena_alloc_dirty(size_t bytes)
{
    return alloc(bytes, false);
}

bool arena_owns(const void *p)
{
    uintptr_t base = (uintptr_t)atomic_load(&arena.base);

    return base != 0 && (uintptr_t)p >= base && (uintptr_t)p - base < arena.bytes;
}

void arena_free(void *p)
{
    size_t offset;
    uint32_t block;

    if (p == NULL || !is_ours())
        return;
    BUG_ON(!arena_owns(p));
    offset = (size_t)((char *)p - atomic_load(&arena.base));
    block = (uint32_t)(offset / BLOCK);
    pthread_mutex_lock(&arena.lock);
    BUG_ON(block >= arena.top);
    if (arena.map[block].state == BLOCK_CUT) {
        free_piece(block, offset % BLOCK);
    } else {
        BUG_ON(arena.map[block].state != BLOCK_HEAD || offset % BLOCK != 0);
        free_run(block, arena.map[block].run);
    }
    pthread_mutex_unlock(&arena.lock);
}
