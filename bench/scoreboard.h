/*
 * scoreboard.h: what the ranks of one launch share for measuring: a barrier, rank 0's decisions
 * and time stamps, in a mapped file.  It belongs to the benchmark and not to the system
 * under test, so that every system is started and timed by the same means.  All ranks are
 * on one machine, hence one clock.
 */
#ifndef BENCH_SCOREBOARD_H
#define BENCH_SCOREBOARD_H

#include <stddef.h>

#define BOARD_RANKS 64
#define BOARD_STAMPS 40000              /* per rank: starts and ends of 20000 samples */

/* Opens the file at `path`, which the driver made; exits with a message on failure. */
void board_open(const char *path, int rank, int size);

/* Spins while every rank has a CPU, yields otherwise.  A rank that waits longer than a
 * minute says so and exits. */
void board_barrier(void);

/* Rank 0's value, on every rank. */
double board_agree(double value);

/* True if `mine` is true on every rank. */
int board_all(int mine);

double *board_stamps(int rank);         /* BOARD_STAMPS of them, written by that rank */

double board_now(void);                 /* seconds */

#endif
