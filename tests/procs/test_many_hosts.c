/*
 * test_many_hosts.c: jobs of many host names on this machine: they form, work and end, a death is
 * known to all of them, and what a rank needs is printed.
 *
 *   HVD_MANY_RANKS=n   largest job (default 32; the long suite takes 256, on 128 hosts)
 *   HVD_MANY_KILLS=n   kills at 64 hosts (default 1; the long suite takes 20)
 *
 * All share the CPUs of one machine: times say how long they waited for them.
 */
#include "check.h"
#include "job_harness.h"

#include "base/clock.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { STEPS = 100 };

/* What a rank has found out of itself. */
struct needs {
    uint64_t init_us, waited_us;        /* for hvd_init; of it, for a CPU */
    int descriptors, threads, private_kb;
};

/* Shared by the test and its ranks. */
struct scene {
    _Atomic int ready;
    int victim;
    _Atomic uint64_t known_us[JOB_RANKS_MAX];
    struct needs needs[JOB_RANKS_MAX];
};

static int setting(const char *name, int usual)
{
    const char *text = getenv(name);

    return text != NULL ? atoi(text) : usual;
}

static struct scene *scene_new(void)
{
    void *p = mmap(NULL, sizeof(struct scene), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(p != MAP_FAILED);
    return p;
}

/* A death is known without heartbeats; late ones on a busy machine are no death. */
static const char *const patient[] = {"HOROVOD_HEARTBEAT_SECONDS=60", NULL};

/* ---- What a rank needs ------------------------------------------------------------------ */

static int count_entries(const char *path)
{
    DIR *d = opendir(path);
    int count = 0;

    CHECK(d != NULL);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        count += e->d_name[0] != '.';
    closedir(d);
    return count;
}

static int private_kb(void)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    int sum = 0, kb;

    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "Private_Clean: %d", &kb) == 1 ||
            sscanf(line, "Private_Dirty: %d", &kb) == 1)
            sum += kb;
    if (f != NULL)
        fclose(f);
    return sum;
}

/* How long this thread was ready to run and had no CPU. */
static uint64_t waited_us(void)
{
    FILE *f = fopen("/proc/thread-self/schedstat", "r");
    unsigned long long ran = 0, waited = 0;

    if (f != NULL) {
        CHECK_EQ(fscanf(f, "%llu %llu", &ran, &waited), 2);
        fclose(f);
    }
    return waited / 1000;
}

static void init_and_measure(struct needs *n)
{
    uint64_t start_us = clock_us(), before_us = waited_us();

    job_init();
    n->init_us = clock_us() - start_us;
    n->waited_us = waited_us() - before_us;
}

static void hundred_steps(int rank, int size, void *context)
{
    struct scene *s = context;
    struct needs *n = &s->needs[rank];

    init_and_measure(n);
    for (int i = 0; i < STEPS; i++)
        CHECK_EQ((int)job_sum("step", 1), size);
    n->descriptors = count_entries("/proc/self/fd");
    n->threads = count_entries("/proc/self/task");
    n->private_kb = private_kb();
    hvd_shutdown();
}

static void print_needs(const struct scene *s, int ranks, int hosts)
{
    struct needs most = {0};

    for (int i = 0; i < ranks; i++) {
        const struct needs *n = &s->needs[i];

        if (n->init_us > most.init_us) {
            most.init_us = n->init_us;
            most.waited_us = n->waited_us;
        }
        most.descriptors = n->descriptors > most.descriptors ? n->descriptors : most.descriptors;
        most.threads = n->threads > most.threads ? n->threads : most.threads;
        most.private_kb = n->private_kb > most.private_kb ? n->private_kb : most.private_kb;
    }
    printf("%d ranks on %d hosts: init %.0f ms (%.0f ms of it ready without a CPU), at most %d "
           "descriptors, %d threads, %.1f MiB of its own a rank\n", ranks, hosts,
           (double)most.init_us / 1e3, (double)most.waited_us / 1e3, most.descriptors,
           most.threads, most.private_kb / 1024.0);
    fflush(stdout);                     /* before the next fork */
}

TEST(many_hosts_form_and_work, .limit_s = 280)
{
    static const struct { int ranks, hosts; } layouts[] = {{8, 8}, {32, 32}, {128, 64},
                                                           {256, 128}};
    int most = setting("HVD_MANY_RANKS", CHECK_SANITIZED ? 8 : 32);

    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct scene *s;

        if (layouts[i].ranks > most)
            break;
        s = scene_new();
        job_run(&(struct job_options){.size = layouts[i].ranks, .hosts = layouts[i].hosts,
                                      .env = patient, .limit_s = 120}, hundred_steps, s);
        print_needs(s, layouts[i].ranks, layouts[i].hosts);
        CHECK(CHECK_SANITIZED || s->needs[0].threads <= 4);
        munmap(s, sizeof *s);
    }
}

/* ---- Deaths ------------------------------------------------------------------------------ */

static void until_the_kill(int rank, int size, void *context)
{
    struct scene *s = context;
    struct hvd_error err = {0};
    double value = 1, sum;
    struct hvd_request req = {.size = sizeof req, .op = HVD_ALLREDUCE, .dtype = HVD_F64,
                              .reduce = HVD_SUM, .device = -1, .name = "step", .ndim = 1,
                              .shape = {1}, .input = &value, .output = &sum};

    (void)size;
    job_init();
    job_sum("first", 1);
    s->ready++;
    while (hvd_run(&req, &err) == HVD_OK)
        ;
    s->known_us[rank] = clock_us();
    CHECK_EQ(err.status, HVD_PEER_LOST);
    CHECK_EQ(err.rank, s->victim);
    hvd_shutdown();
}

/* Microseconds until the last survivor knew; in *first_p, the first one. */
static uint64_t kill_one(int hosts, int victim, uint64_t *first_p)
{
    struct job_options opt = {.size = hosts, .hosts = hosts, .env = patient, .limit_s = 120};
    struct scene *s = scene_new();
    uint64_t struck_us, worst = 0, first = UINT64_MAX;
    struct job job;

    s->victim = victim;
    job_start(&job, &opt, until_the_kill, s);
    while (s->ready < hosts)
        sched_yield();
    struck_us = clock_us();
    kill(job.pids[victim], SIGKILL);
    for (int rank = 0; rank < hosts; rank++) {
        uint64_t took;

        CHECK_EQ(job_wait(&job, rank), rank == victim ? -SIGKILL : 0);
        if (rank == victim)
            continue;
        took = s->known_us[rank] - struck_us;
        worst = took > worst ? took : worst;
        first = took < first ? took : first;
    }
    job_end(&job);
    munmap(s, sizeof *s);
    *first_p = first;
    return worst;
}

TEST(a_death_among_many_hosts_is_known_to_all, .limit_s = 280)
{
    int hosts = CHECK_SANITIZED ? 16 : 64, kills = setting("HVD_MANY_KILLS", 1);

    for (int i = 0; i < kills; i++) {
        int victim = (7 + 29 * i) % hosts;
        uint64_t first, worst = kill_one(hosts, victim, &first);

        printf("%d hosts, rank %d killed: known after %.1f ms, to all after %.1f ms\n", hosts,
               victim, (double)first / 1e3, (double)worst / 1e3);
        fflush(stdout);                 /* before the next fork */
        CHECK(worst < 5000000);         /* no heartbeat is waited for: those come after 6 s */
    }
}
