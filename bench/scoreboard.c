/* scoreboard.c: see scoreboard.h. */
#include "scoreboard.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SPINS 20000                     /* about 50 us, then others may have the CPU */
#define LIMIT_S 60

/* One line a rank and one writer a line. */
struct line {
    _Alignas(128) _Atomic long turn;
    _Atomic double value;
};

struct board {
    struct line line[BOARD_RANKS];
    double stamps[BOARD_RANKS][BOARD_STAMPS];
};

static struct board *board;
static int me, count, has_cpu;
static long turn;

double board_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void board_open(const char *path, int rank, int size)
{
    cpu_set_t cpus;
    int fd = open(path, O_RDWR | O_CLOEXEC);

    if (fd < 0 || size > BOARD_RANKS || ftruncate(fd, sizeof(struct board)) != 0) {
        perror(path);
        exit(2);
    }
    board = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (board == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    me = rank;
    count = size;
    has_cpu = size <= sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) > 1)
        has_cpu = size <= CPU_COUNT(&cpus);
}

static void wait_for(int rank)
{
    _Atomic long *at = &board->line[rank].turn;
    double end = 0;

    for (long spins = 0; atomic_load_explicit(at, memory_order_acquire) < turn; spins++) {
        if (has_cpu && spins < SPINS) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
            continue;
        }
        sched_yield();
        if (end == 0)
            end = board_now() + LIMIT_S;
        if (spins % 1024 == 0 && board_now() > end) {
            fprintf(stderr, "rank %d waits for rank %d for %d s\n", me, rank, LIMIT_S);
            exit(3);
        }
    }
}

void board_barrier(void)
{
    turn++;
    atomic_store_explicit(&board->line[me].turn, turn, memory_order_release);
    for (int r = 0; r < count; r++)
        wait_for(r);
}

double board_agree(double value)
{
    double first;

    atomic_store(&board->line[me].value, value);
    board_barrier();
    first = atomic_load(&board->line[0].value);
    board_barrier();
    return first;
}

int board_all(int mine)
{
    int all = 1;

    atomic_store(&board->line[me].value, mine != 0);
    board_barrier();
    for (int r = 0; r < count; r++)
        all &= atomic_load(&board->line[r].value) != 0;
    board_barrier();
    return all;
}

double *board_stamps(int rank)
{
    return board->stamps[rank];
}
