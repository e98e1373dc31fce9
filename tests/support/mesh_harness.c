/* mesh_harness.c: see mesh_harness.h.  What ranks share lies in anonymous shared memory,
 * so that threads and processes run the same code. */
#include "support/mesh_harness.h"

#include "base/clock.h"
#include "base/fault.h"
#include "check.h"
#include "transport/transport_int.h"
#include "wire/handshake.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct harness_shared {
    atomic_uint come, turn;             /* barrier */
    struct table_entry entries[HARNESS_RANKS];
    _Atomic uint64_t words[64];
};

static struct harness_shared *shared_new(void)
{
    struct harness_shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(s != MAP_FAILED);
    return s;
}

static void configure(struct harness_rank *r)
{
    const struct harness *h = r->harness;
    char host[32];

    CHECK_OK(config_read(&r->conf, &r->err), r->err);
    r->conf.rank = r->rank;
    r->conf.size = r->size;
    r->conf.shm_disable = h->shm_disable;
    if (h->heartbeat_s > 0)
        r->conf.heartbeat_s = h->heartbeat_s;
    snprintf(host, sizeof host, "host-%d",
             h->host_of != NULL ? h->host_of[r->rank]
                                : r->rank % (h->hosts > 0 ? h->hosts : 1));
    CHECK_OK(config_set(&r->conf, config_find("HOSTNAME"), host, CONFIG_OPTION, &r->err),
             r->err);
    CHECK_OK(config_set(&r->conf, config_find("SECURITY"),
                        h->security != NULL ? h->security : "auth", CONFIG_OPTION,
                        &r->err),
             r->err);
}

static enum hvd_status form(struct harness_rank *r)
{
    const struct harness *h = r->harness;
    double timeout_s = h->timeout_s > 0 ? h->timeout_s : 50;
    struct mesh_options opt = {
        .conf = &r->conf, .key = r->key, .job_id = "harness", .generation = 1,
        .deadline_us = clock_us() + (uint64_t)(timeout_s * 1e6),
        .board_bytes = h->board_bytes > 0 ? h->board_bytes : 1 << 20};
    struct table table = {1, r->size, r->shared->entries};
    struct mesh_listener *listener = NULL;
    struct table_entry *self = &r->shared->entries[r->rank];
    enum hvd_status status;

    *self = (struct table_entry){.rank = r->rank, .size = r->size, .local_rank = -1,
                                 .local_size = -1, .cross_rank = -1, .cross_size = -1,
                                 .generation = 1};
    status = mesh_listen(&opt, self, &listener, &r->err);

    harness_barrier(r);
    if (status != HVD_OK)
        return status;
    return mesh_open(&opt, listener, &table, &r->mesh, &r->err);
}

/* Data links are made on demand; a test that looks at sockets wants them first. */
static void connect_all(struct harness_rank *r)
{
    for (int p = 0; p < r->size; p++)
        mesh_warm(r->mesh, p);
    for (int p = 0; p < r->size; p++)
        while (r->mesh->links[p].pending && mesh_verdict(r->mesh) == NULL) {
            mesh_progress(r->mesh);
            sched_yield();
        }
    harness_barrier(r);
    mesh_sleep(r->mesh, 0);             /* takes the kick of the last one */
}

static void run_rank(struct harness_rank *r, harness_fn body)
{
    configure(r);
    for (int i = 0; i < HS_KEY; i++)
        r->key[i] = (uint8_t)(i * 7 + 1);
    if (r->harness->prepare != NULL)
        r->harness->prepare(r);
    r->opened = form(r);
    if (r->opened != HVD_OK && !r->harness->may_fail)
        check_fail(__FILE__, __LINE__, "rank %d: mesh_open: %s: %s", r->rank,
                   hvd_status_name(r->opened), r->err.text);
    if (r->opened == HVD_OK && r->harness->connect)
        connect_all(r);
    body(r);
    if (r->mesh != NULL)
        mesh_close(r->mesh, !r->harness->no_goodbye);
    config_release(&r->conf);
}

struct thread {
    pthread_t id;
    struct harness_rank rank;
    harness_fn body;
};

static void *thread_main(void *context)
{
    struct thread *t = context;

    run_rank(&t->rank, t->body);
    return NULL;
}

static void run_threads(const struct harness *h, harness_fn body)
{
    struct thread threads[HARNESS_RANKS] = {0};
    struct harness_shared *s = shared_new();

    CHECK(fault_setup(h->fault, 0));
    for (int i = 0; i < h->size; i++) {
        threads[i].rank = (struct harness_rank){.rank = i, .size = h->size, .harness = h,
                                                .shared = s, .context = h->context};
        threads[i].body = body;
        CHECK_EQ(pthread_create(&threads[i].id, NULL, thread_main, &threads[i]), 0);
    }
    for (int i = 0; i < h->size; i++)
        pthread_join(threads[i].id, NULL);
    munmap(s, sizeof *s);
}

void harness_run_processes(const struct harness *h, harness_fn body, int *statuses)
{
    struct harness_shared *s = shared_new();
    pid_t pids[HARNESS_RANKS];
    bool failed = false;

    for (int i = 0; i < h->size; i++) {
        pids[i] = fork();
        CHECK(pids[i] >= 0);
        if (pids[i] == 0) {
            struct harness_rank r = {.rank = i, .size = h->size, .harness = h,
                                     .shared = s, .context = h->context};

            prctl(PR_SET_PDEATHSIG, SIGKILL);
            CHECK(fault_setup(h->fault, i));
            run_rank(&r, body);
            fflush(NULL);
            exit(0);
        }
    }
    for (int i = 0; i < h->size; i++) {
        int status;

        while (waitpid(pids[i], &status, 0) < 0 && errno == EINTR)
            ;
        if (statuses != NULL)
            statuses[i] = status;
        failed = failed || status != 0;
    }
    munmap(s, sizeof *s);
    if (statuses == NULL && failed)
        check_fail(__FILE__, __LINE__, "a rank failed");
}

void harness_run(const struct harness *h, harness_fn body)
{
    if (h->processes)
        harness_run_processes(h, body, NULL);
    else
        run_threads(h, body);
}

/* A rank that waits here still has to send what it has posted. */
void harness_barrier(struct harness_rank *r)
{
    struct harness_shared *s = r->shared;
    unsigned turn = atomic_load(&s->turn);

    if (atomic_fetch_add(&s->come, 1) + 1 == (unsigned)r->size) {
        atomic_store(&s->come, 0);
        atomic_store(&s->turn, turn + 1);
        return;
    }
    while (atomic_load(&s->turn) == turn) {
        if (r->mesh != NULL)
            mesh_progress(r->mesh);
        sched_yield();
    }
}

_Atomic uint64_t *harness_word(struct harness_rank *r, int index)
{
    return &r->shared->words[index];
}

const struct table_entry *harness_entry(struct harness_rank *r, int rank)
{
    return &r->shared->entries[rank];
}

pid_t harness_pid(struct harness_rank *r, int rank)
{
    return r->shared->entries[rank].pid;
}

static void sleep_once(struct mesh *m)
{
    if (mesh_arm(m, false)) {
        mesh_sleep(m, -1);
        mesh_disarm(m);
    }
}

enum hvd_status harness_wait(struct mesh *m, struct mesh_xfer *x)
{
    while (x->status == HVD_AGAIN)
        if (mesh_progress(m) == 0 && x->status == HVD_AGAIN)
            sleep_once(m);
    return x->status;
}

void harness_wait_flag(struct mesh *m, const volatile bool *done)
{
    while (!*done && mesh_verdict(m) == NULL)
        if (mesh_progress(m) == 0 && !*done)
            sleep_once(m);
}

uint64_t harness_wait_verdict(struct mesh *m)
{
    uint64_t start = clock_us();

    while (mesh_verdict(m) == NULL)
        if (mesh_progress(m) == 0)
            sleep_once(m);
    mesh_progress(m);
    return clock_us() - start;
}
