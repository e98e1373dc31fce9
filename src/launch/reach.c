/*
 * reach.c: reachability of the rendezvous server.  The connections are closed without a
 * byte: the server takes them for strangers who gave up.
 *
 * 1. An address answers when connect succeeds.  The first of the list wins; when a later
 *    one is ready and an earlier one is not decided, the earlier gets 100 ms more.
 * 2. After 5 s what has not answered does not count.
 */
#include "launch/reach.h"

#include "horovod/driver.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#define ADDRS_MAX 64
#define LIMIT_MS 5000
#define PATIENCE_MS 100

enum state { TRYING, ANSWERED, FAILED };

struct attempt {
    struct reach *reach;
    uv_tcp_t socket;
    uv_connect_t request;
    enum state state;
    char addr[HVD_ADDR_MAX];
};

struct reach {
    struct attempt attempts[ADDRS_MAX];
    int count;
    int handles;                        /* of libuv, not closed yet */
    uv_timer_t timer;
    bool is_patient;                    /* the 100 ms are running */
    bool is_over;
    reach_fn done;
    void *owner;
};

static void finish(struct reach *r, const char *addr)
{
    if (r->is_over)
        return;
    r->is_over = true;
    uv_timer_stop(&r->timer);
    r->done(r->owner, addr);
}

static void on_time(uv_timer_t *timer)
{
    struct reach *r = timer->data;

    for (int i = 0; i < r->count; i++)
        if (r->attempts[i].state == ANSWERED) {
            finish(r, r->attempts[i].addr);
            return;
        }
    finish(r, "");
}

static void decide(struct reach *r)
{
    bool answered = false, undecided = false;

    for (int i = 0; i < r->count && !r->is_over; i++) {
        if (r->attempts[i].state == ANSWERED && !undecided) {
            finish(r, r->attempts[i].addr);
            return;
        }
        answered |= r->attempts[i].state == ANSWERED;
        undecided |= r->attempts[i].state == TRYING;
    }
    if (!answered && !undecided)
        finish(r, "");
    else if (answered && !r->is_patient && !r->is_over) {
        r->is_patient = true;
        uv_timer_start(&r->timer, on_time, PATIENCE_MS, 0);
    }
}

static void on_connect(uv_connect_t *request, int status)
{
    struct attempt *a = request->data;

    a->state = status == 0 ? ANSWERED : FAILED;
    if (status != UV_ECANCELED)
        decide(a->reach);
}

static void attempt_start(struct reach *r, uv_loop_t *loop, const char *addr, int port)
{
    struct attempt *a = &r->attempts[r->count++];
    struct sockaddr_storage where;
    int result;

    a->reach = r;
    a->request.data = a;
    a->socket.data = r;
    snprintf(a->addr, sizeof a->addr, "%s", addr);
    uv_tcp_init(loop, &a->socket);
    r->handles++;
    result = uv_ip4_addr(addr, port, (struct sockaddr_in *)&where);
    if (result != 0)
        result = uv_ip6_addr(addr, port, (struct sockaddr_in6 *)&where);
    if (result == 0)
        result = uv_tcp_connect(&a->request, &a->socket, (struct sockaddr *)&where,
                                on_connect);
    a->state = result == 0 ? TRYING : FAILED;
}

enum hvd_status reach_start(uv_loop_t *loop, const char *addrs, int port, reach_fn done,
                            void *owner, struct reach **reach_p, struct hvd_error *err)
{
    struct reach *r = calloc(1, sizeof *r);
    char *copy = strdup(addrs), *rest = NULL;

    if (r == NULL || copy == NULL) {
        free(r);
        free(copy);
        return error_set(err, HVD_NOMEM, -1, "no memory for a probe");
    }
    r->done = done;
    r->owner = owner;
    uv_timer_init(loop, &r->timer);
    r->timer.data = r;
    r->handles = 1;
    uv_timer_start(&r->timer, on_time, LIMIT_MS, 0);
    for (char *addr = strtok_r(copy, ",", &rest); addr != NULL && r->count < ADDRS_MAX;
         addr = strtok_r(NULL, ",", &rest))
        attempt_start(r, loop, addr, port);
    free(copy);
    *reach_p = r;
    decide(r);
    return HVD_OK;
}

static void on_closed(uv_handle_t *handle)
{
    struct reach *r = handle->data;

    if (--r->handles == 0)
        free(r);
}

void reach_stop(struct reach *r)
{
    if (r == NULL)
        return;
    r->is_over = true;
    for (int i = 0; i < r->count; i++)
        uv_close((uv_handle_t *)&r->attempts[i].socket, on_closed);
    uv_close((uv_handle_t *)&r->timer, on_closed);
}
