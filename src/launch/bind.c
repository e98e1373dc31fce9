/*
 * bind.c: binding of local ranks.
 *
 * 1. More ranks than CPUs: each rank keeps to one CPU, neighbours share.  Worth 1.3 to 2
 *    times, because ranks that wait for each other stay where their data is.
 * 2. Several NUMA nodes: each rank keeps to one node, ranks spread evenly in blocks.
 * 3. Otherwise the kernel places better than we could: another job may run here, and
 *    helper processes of a rank would share its few CPUs.
 */
#include "launch/bind.h"

#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODES_MAX 64

/* "max 100000" or "200000 100000": microseconds of CPU in a period. */
static int read_quota(const char *path)
{
    FILE *file = fopen(path, "re");
    double quota = 0, period = 0;
    int cpus = 0;

    if (file == NULL)
        return 0;
    if (fscanf(file, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0)
        cpus = (int)((quota + period - 1) / period);
    fclose(file);
    return cpus;
}

int bind_cpu_count(void)
{
    int cpus = thread_cpu_count(), quota = read_quota("/sys/fs/cgroup/cpu.max");

    if (quota > 0 && quota < cpus)
        cpus = quota;
    return cpus > 0 ? cpus : 1;
}

static void only_nth(const cpu_set_t *allowed, int n, cpu_set_t *cpus_p)
{
    CPU_ZERO(cpus_p);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, allowed) && n-- == 0) {
            CPU_SET(cpu, cpus_p);
            return;
        }
}

bool bind_choose_from(const cpu_set_t *allowed, const cpu_set_t *nodes, int node_count,
                      int local_rank, int local_size, cpu_set_t *cpus_p)
{
    int cpus = CPU_COUNT(allowed), usable = 0;
    cpu_set_t sets[NODES_MAX];

    if (local_size < 2 || cpus == 0)
        return false;
    if (local_size > cpus) {
        only_nth(allowed, (int)((long)local_rank * cpus / local_size), cpus_p);
        return true;
    }
    for (int i = 0; i < node_count && usable < NODES_MAX; i++) {
        CPU_AND(&sets[usable], &nodes[i], allowed);
        usable += CPU_COUNT(&sets[usable]) > 0;
    }
    if (usable < 2)
        return false;
    *cpus_p = sets[(long)local_rank * usable / local_size];
    return true;
}

/* "0-3,8-11" */
static void parse_list(const char *text, cpu_set_t *set)
{
    CPU_ZERO(set);
    while (*text >= '0' && *text <= '9') {
        char *end;
        long first = strtol(text, &end, 10), last = first;

        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        for (long cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++)
            CPU_SET((int)cpu, set);
        text = *end == ',' ? end + 1 : end;
    }
}

static int read_nodes(cpu_set_t *nodes)
{
    int count = 0;

    for (int i = 0; i < NODES_MAX; i++) {
        char path[80], text[4096];
        FILE *file;

        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", i);
        file = fopen(path, "re");
        if (file == NULL)
            continue;
        if (fgets(text, sizeof text, file) != NULL)
            parse_list(text, &nodes[count++]);
        fclose(file);
    }
    return count;
}

bool bind_choose(int local_rank, int local_size, cpu_set_t *cpus_p)
{
    cpu_set_t allowed, nodes[NODES_MAX];

    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return false;
    return bind_choose_from(&allowed, nodes, read_nodes(nodes), local_rank, local_size,
                            cpus_p);
}
