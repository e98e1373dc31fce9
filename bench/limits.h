/*
 * limits.h: what the parts of the program `limits` share: clock, pinning, memory, threads
 * on all CPUs, and one JSON line per result.
 */
#ifndef BENCH_LIMITS_H
#define BENCH_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define RUNS 7                          /* of each measurement; the median counts */

double limits_now(void);                /* seconds */
int limits_cpu_count(void);             /* of the affinity mask */
void limits_pin(int nth);               /* this thread to the nth CPU of that mask */

/* A child that does not outlive us: the children spin. */
pid_t limits_fork(void);
void limits_join(pid_t child);

enum limits_pages { PAGES_SMALL, PAGES_HUGE, PAGES_SHARED };
void *limits_map(size_t bytes, enum limits_pages pages);        /* touched, zero */
void limits_unmap(void *p, size_t bytes);

double limits_median(double *values, int count);

/* {"limit": what, "value": median, "low": ..., "high": ..., "unit": unit} */
void limits_report(const char *what, double *values, int count, const char *unit);

/* Every part: its words after the name; 0, or 2 for a wrong usage. */
int limits_sync(int argc, char **argv);
int limits_wait(int argc, char **argv);
int limits_stream(int argc, char **argv);
int limits_core(int argc, char **argv);
int limits_cma(int argc, char **argv);
int limits_allreduce(int argc, char **argv);
int limits_tcp(int argc, char **argv);

#endif
