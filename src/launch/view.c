/* view.c: see view.h. */
#include "launch/view.h"

#include "base/process.h"
#include "horovod/horovod.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLAME_SHARE 0.05                /* of the time of one rank: less stands out nowhere */

void view_init(struct view *v, uint64_t now_us)
{
    *v = (struct view){.now_us = now_us};
}

static void release_job(struct view_job *j)
{
    for (int i = 0; i < j->rank_count; i++)
        look_rank_release(&j->ranks[i].look);
    for (int i = 0; i < j->wait_count; i++)
        free(j->waits[i].waits);        /* the block of both */
    free(j->waits);
    free(j->ranks);
    free(j->hosts);
}

void view_release(struct view *v)
{
    for (int i = 0; i < v->count; i++)
        release_job(&v->jobs[i]);
    free(v->jobs);
    *v = (struct view){0};
}

/* One more of an array that is kept at powers of two; NULL: no memory. */
static void *add_item(void *array_p, int *count_p, size_t bytes)
{
    void **array = array_p;
    int n = *count_p;

    if ((n & (n - 1)) == 0) {
        void *larger = realloc(*array, (n == 0 ? 1 : 2 * (size_t)n) * bytes);

        if (larger == NULL)
            return NULL;
        *array = larger;
    }
    ++*count_p;
    return memset((char *)*array + (size_t)n * bytes, 0, bytes);
}

static enum hvd_status no_memory(struct hvd_error *err)
{
    return error_set(err, HVD_NOMEM, -1, "no memory for the status");
}

/* ---- Frames ----------------------------------------------------------------------- */

static struct view_job *find_job(struct view *v, const char *id)
{
    for (int i = 0; i < v->count; i++)
        if (strcmp(v->jobs[i].id, id) == 0)
            return &v->jobs[i];
    return NULL;
}

static struct view_job *get_job(struct view *v, const char *id)
{
    struct view_job *j = find_job(v, id);

    if (j == NULL) {
        j = add_item(&v->jobs, &v->count, sizeof *j);
        if (j != NULL)
            snprintf(j->id, sizeof j->id, "%s", id);
    }
    return j;
}

/* The process of a pid on a host; host NULL: on any, since a rank may call its host by
 * another name than the launcher. */
static struct view_rank *find_rank(struct view_job *j, uint32_t pid, const char *host)
{
    for (int i = 0; i < j->rank_count; i++)
        if (j->ranks[i].pid == pid && (host == NULL || strcmp(j->ranks[i].host, host) == 0))
            return &j->ranks[i];
    return NULL;
}

static struct view_rank *get_rank(struct view_job *j, uint32_t pid, const char *host)
{
    struct view_rank *r = find_rank(j, pid, host);

    if (r == NULL) {
        r = add_item(&j->ranks, &j->rank_count, sizeof *r);
        if (r != NULL) {
            r->pid = pid;
            r->rank = -1;
            snprintf(r->host, sizeof r->host, "%s", host);
        }
    }
    return r;
}

static enum hvd_status add_process(struct view_job *j, const struct look_host *host,
                                   const char *body, size_t n, struct hvd_error *err)
{
    struct look_process p;
    struct view_rank *r;

    TRY(get_look_process(&p, body, n, err));
    if (p.host[0] == '\0' && host != NULL)
        snprintf(p.host, sizeof p.host, "%s", host->name);
    r = p.pid > 0 ? get_rank(j, p.pid, p.host) : NULL;
    if (p.pid == 0) {                   /* not started: nothing else tells them apart */
        r = add_item(&j->ranks, &j->rank_count, sizeof *r);
        if (r != NULL)
            snprintf(r->host, sizeof r->host, "%s", p.host);
    }
    if (r == NULL)
        return no_memory(err);
    if (r->has_process) {               /* what the agent adds to what the launcher said */
        r->process.state = p.state;
        r->process.rss_bytes = p.rss_bytes;
        return HVD_OK;
    }
    r->process = p;
    r->has_process = true;
    r->rank = p.rank;
    return HVD_OK;
}

static enum hvd_status add_rank(struct view *v, struct view_job *launched,
                                const struct look_host *host, const char *body, size_t n,
                                struct hvd_error *err)
{
    struct look_rank *look = malloc(sizeof *look);
    struct view_job *j;
    struct view_rank *r = NULL;
    enum hvd_status status = look != NULL ? get_look_rank(look, body, n, err)
                                          : no_memory(err);

    if (status == HVD_OK) {
        /* Ranks that were started by hand without a name of their job are one each. */
        j = launched != NULL ? launched : get_job(v, look->job);
        if (j != NULL)
            r = get_rank(j, look->pid, host != NULL ? host->name : look->host);
        if (r == NULL || r->has_look) {
            status = r == NULL ? no_memory(err) : HVD_OK;
            look_rank_release(look);
        } else {
            r->look = *look;
            r->has_look = true;
            r->rank = look->rank >= 0 ? look->rank : r->rank;
            r->offset_us = host != NULL ? host->offset_us : 0;
        }
    }
    free(look);
    return status;
}

static enum hvd_status add_host(struct view_job *j, const char *body, size_t n,
                                struct look_host *host, struct hvd_error *err)
{
    struct look_host *kept;

    TRY(get_look_host(host, body, n, err));
    kept = add_item(&j->hosts, &j->host_count, sizeof *kept);
    if (kept == NULL)
        return no_memory(err);
    *kept = *host;
    return HVD_OK;
}

static enum hvd_status add_job(struct view *v, const char *body, size_t n,
                               struct view_job **job_p, struct hvd_error *err)
{
    struct look_job job;

    TRY(get_look_job(&job, body, n, err));
    *job_p = get_job(v, job.job);
    if (*job_p == NULL)
        return no_memory(err);
    (*job_p)->job = job;
    (*job_p)->has_launcher = true;
    return HVD_OK;
}

/* Workers that their launcher has told of already come again behind their own hatches. */
static bool is_known(struct view *v, const char *body, size_t n)
{
    struct look_rank *look = malloc(sizeof *look);
    struct hvd_error err;
    bool known = false;

    if (look != NULL && get_look_rank(look, body, n, &err) == HVD_OK) {
        struct view_job *j = find_job(v, look->job);
        struct view_rank *r = j != NULL && j->has_launcher ? find_rank(j, look->pid, NULL)
                                                           : NULL;

        known = r != NULL && r->has_look;
        look_rank_release(look);
    }
    free(look);
    return known;
}

enum hvd_status view_add(struct view *v, const char *frames, size_t n,
                         struct hvd_error *err)
{
    struct view_job *launched = NULL;
    struct look_host host;
    bool has_host = false;

    while (n > 0) {
        enum look_frame kind;
        const char *body;
        size_t body_n, used;
        enum hvd_status status = get_look_frame(frames, n, &kind, &body, &body_n, &used, err);

        if (status == HVD_AGAIN)
            status = error_set(err, HVD_PROTO, -1, "an answer is cut off");
        TRY(status);
        if (kind == LOOK_JOB) {
            TRY(add_job(v, body, body_n, &launched, err));
            has_host = false;
        } else if (kind == LOOK_HOST && launched != NULL) {
            TRY(add_host(launched, body, body_n, &host, err));
            has_host = true;
        } else if (kind == LOOK_PROCESS && launched != NULL) {
            TRY(add_process(launched, has_host ? &host : NULL, body, body_n, err));
        } else if (kind == LOOK_RANK && (launched != NULL || !is_known(v, body, body_n))) {
            TRY(add_rank(v, launched, has_host ? &host : NULL, body, body_n, err));
        }
        frames += used;
        n -= used;
    }
    return HVD_OK;
}

/* ---- Conclusions ------------------------------------------------------------------ */

static int compare_ranks(const void *a, const void *b)
{
    const struct view_rank *x = a, *y = b;
    unsigned left = (unsigned)x->rank, right = (unsigned)y->rank;       /* -1 comes last */

    if (left != right)
        return left < right ? -1 : 1;
    return x->pid < y->pid ? -1 : x->pid > y->pid;
}

static void sum_kinds(const struct look_rank *l, uint64_t *ops_p, uint64_t *bytes_p)
{
    *ops_p = *bytes_p = 0;
    for (uint32_t i = 0; i < l->kind_count; i++) {
        *ops_p += l->kinds[i].count;
        *bytes_p += l->kinds[i].bytes;
    }
}

static const struct look_rank *look_before(const struct view *before, const char *id,
                                           const struct view_rank *r)
{
    for (int i = 0; before != NULL && i < before->count; i++)
        for (int k = 0; strcmp(before->jobs[i].id, id) == 0 &&
                        k < before->jobs[i].rank_count; k++) {
            const struct view_rank *b = &before->jobs[i].ranks[k];

            if (b->has_look && b->pid == r->pid && strcmp(b->host, r->host) == 0 &&
                b->look.generation == r->look.generation &&
                b->look.now_us < r->look.now_us)
                return &b->look;
        }
    return NULL;
}

static uint64_t slept_for(const struct look_rank *l, int rank)
{
    for (uint32_t i = 0; i < l->peer_count; i++)
        if (l->peers[i].rank == rank)
            return l->peers[i].wait_us + l->peers[i].late_us;
    return 0;
}

static double less(uint64_t now, uint64_t then)
{
    return now > then ? (double)(now - then) : 0;
}

static void find_rates(struct view_job *j, const struct view *before)
{
    for (int i = 0; i < j->rank_count; i++) {
        struct view_rank *r = &j->ranks[i];
        const struct look_rank *then = look_before(before, j->id, r);
        uint64_t ops, bytes, ops_then, bytes_then;

        if (!r->has_look || then == NULL)
            continue;
        sum_kinds(&r->look, &ops, &bytes);
        sum_kinds(then, &ops_then, &bytes_then);
        r->seconds = (double)(r->look.now_us - then->now_us) / 1e6;
        r->ops_s = less(ops, ops_then) / r->seconds;
        r->bytes_s = less(bytes, bytes_then) / r->seconds;
        r->cpu = less(r->look.cpu_us, then->cpu_us) / 1e6 / r->seconds;
        r->waiting = less(r->look.slept_us, then->slept_us) / 1e6 / r->seconds;
        j->ops_s += r->ops_s;
        j->bytes_s += r->bytes_s;
        for (int k = 0; k < j->rank_count; k++)
            if (j->ranks[k].rank >= 0)
                j->ranks[k].blamed_s += less(slept_for(&r->look, j->ranks[k].rank),
                                             slept_for(then, j->ranks[k].rank)) / 1e6;
    }
}

static struct view_wait *get_wait(struct view_job *j, const struct look_wait *from)
{
    struct view_wait *w;

    for (int i = 0; i < j->wait_count; i++)
        if (j->waits[i].op == from->op && strcmp(j->waits[i].name, from->name) == 0)
            return &j->waits[i];
    w = add_item(&j->waits, &j->wait_count, sizeof *w);
    if (w == NULL)
        return NULL;
    w->op = from->op;
    w->name = from->name;
    w->waits = calloc(2 * (size_t)j->size + 1, sizeof *w->waits);
    if (w->waits == NULL) {
        j->wait_count--;
        return NULL;
    }
    w->missing = w->waits + j->size;
    return w;
}

/* Every rank tells of the waits it can see; a rank waits itself if its oldest operation is
 * of that name. */
static void add_waits(struct view_job *j, const struct view_rank *r)
{
    for (uint32_t i = 0; i < r->look.wait_count; i++) {
        const struct look_wait *from = &r->look.waits[i];
        struct view_wait *w = get_wait(j, from);
        double age_s = less(r->look.now_us, from->since_us) / 1e6;

        if (w == NULL)
            return;
        w->age_s = age_s > w->age_s ? age_s : w->age_s;
        for (uint32_t k = 0; k < from->missing_count && k < LOOK_MISSING; k++)
            if (from->missing[k] >= 0 && from->missing[k] < j->size)
                w->missing[from->missing[k]] = true;
    }
}

static int compare_waits(const void *a, const void *b)
{
    const struct view_wait *x = a, *y = b;

    return x->age_s > y->age_s ? -1 : x->age_s < y->age_s;
}

static void find_waits(struct view_job *j)
{
    for (int i = 0; i < j->rank_count; i++)
        if (j->ranks[i].has_look)
            add_waits(j, &j->ranks[i]);
    for (int i = 0; i < j->wait_count; i++) {
        struct view_wait *w = &j->waits[i];

        for (int k = 0; k < j->rank_count; k++) {
            const struct view_rank *r = &j->ranks[k];

            if (r->rank >= 0 && r->rank < j->size && r->has_look && r->look.open > 0 &&
                r->look.op == w->op && strcmp(r->look.name, w->name) == 0)
                w->waits[r->rank] = true;
        }
        for (int r = 0; r < j->size; r++) {
            w->missing[r] &= !w->waits[r];      /* it has come meanwhile */
            w->wait_count += w->waits[r];
            w->missing_count += w->missing[r];
        }
    }
    if (j->wait_count > 0)
        qsort(j->waits, (size_t)j->wait_count, sizeof *j->waits, compare_waits);
}

static const struct view_wait *wait_of(const struct view_job *j, const struct view_rank *r)
{
    for (int i = 0; i < j->wait_count; i++)
        if (j->waits[i].op == r->look.op && strcmp(j->waits[i].name, r->look.name) == 0 &&
            j->waits[i].missing_count > 0)
            return &j->waits[i];
    return NULL;
}

/* A sleep is counted when it ends; one that lasts has to be seen. */
static void add_present_waits(struct view_job *j)
{
    for (int i = 0; i < j->rank_count; i++) {
        struct view_rank *r = &j->ranks[i];
        double age_s = view_rank_age(r);

        if (r->seconds <= 0 || r->look.open == 0 || wait_of(j, r) == NULL)
            continue;
        r->waiting += age_s / r->seconds;
        r->waiting = r->waiting < 1 ? r->waiting : 1;
    }
}

/* Who others slept for most since the last view; or now, in an operation that is late. */
static void find_slowest(struct view_job *j)
{
    double seconds = 0;

    j->slowest = -1;
    for (int i = 0; i < j->rank_count; i++) {
        const struct view_rank *r = &j->ranks[i];

        seconds = r->seconds > seconds ? r->seconds : seconds;
        if (r->rank >= 0 && r->blamed_s > j->slowest_s) {
            j->slowest = r->rank;
            j->slowest_s = r->blamed_s;
        }
    }
    if (j->slowest_s < BLAME_SHARE * seconds) {
        j->slowest = -1;
        j->slowest_s = 0;
    }
    if (j->slowest >= 0 || j->wait_count == 0 || j->waits[0].missing_count != 1 ||
        j->waits[0].age_s < 1)
        return;
    for (int r = 0; r < j->size; r++)
        if (j->waits[0].missing[r])
            j->slowest = r;
    j->slowest_s = j->waits[0].age_s * j->waits[0].wait_count;
}

/* A rank that was started again elsewhere has an older process of its name. */
static int find_size(const struct view_job *j)
{
    int size = j->has_launcher && !j->job.is_elastic ? (int)j->job.np : 0;

    for (int i = 0; i < j->rank_count; i++) {
        if (j->ranks[i].has_look && j->ranks[i].look.size > size)
            size = j->ranks[i].look.size;
        if (j->ranks[i].rank >= size)
            size = j->ranks[i].rank + 1;
    }
    return size;
}

void view_finish(struct view *v, const struct view *before)
{
    for (int i = 0; i < v->count; i++) {
        struct view_job *j = &v->jobs[i];

        if (j->rank_count > 0)
            qsort(j->ranks, (size_t)j->rank_count, sizeof *j->ranks, compare_ranks);
        j->size = find_size(j);
        find_rates(j, before);
        find_waits(j);
        add_present_waits(j);
        find_slowest(j);
    }
}

static bool fits(const struct view_job *j, const char *text)
{
    char *end;
    unsigned long pid = strtoul(text, &end, 10);

    if (strncmp(j->id, text, strlen(text)) == 0)
        return true;
    if (*end != '\0' || pid == 0)
        return false;
    if (j->has_launcher && j->job.pid == pid)
        return true;
    for (int i = 0; i < j->rank_count; i++)
        if (j->ranks[i].pid == pid)
            return true;
    return false;
}

void view_keep(struct view *v, const char *text)
{
    int kept = 0;

    for (int i = 0; i < v->count; i++) {
        if (fits(&v->jobs[i], text))
            v->jobs[kept++] = v->jobs[i];
        else
            release_job(&v->jobs[i]);
    }
    v->count = kept;
}

/* ---- One rank in words ------------------------------------------------------------ */

const char *view_op_text(uint8_t op)
{
    return op < HVD_OP_COUNT ? hvd_op_name((enum hvd_op)op) : "change of process sets";
}

void view_add_operation(struct strbuf *out, uint8_t op, const char *name)
{
    const char *text = view_op_text(op);
    size_t n = strlen(text);

    if (strncmp(name, text, n) == 0 && name[n] == '.')
        strbuf_addf(out, "%s", name);
    else
        strbuf_addf(out, "%s %s", text, name);
}

static void describe_end(const struct look_process *p, struct strbuf *out)
{
    if (p->signal > 0)
        strbuf_addf(out, "ended by SIG%s", signal_name((int)p->signal) != NULL
                                               ? signal_name((int)p->signal) : "?");
    else
        strbuf_addf(out, "ended with code %u", p->code);
    if (p->text[0] != '\0')
        strbuf_addf(out, ": %s", p->text);
}

static void describe_process(const struct view_rank *r, struct strbuf *out)
{
    const struct look_process *p = &r->process;

    if (!p->is_started || p->pid == 0)
        strbuf_addf(out, "not started yet");
    else if (p->state == 'T' || p->state == 't')
        strbuf_addf(out, "stopped (SIGSTOP or a debugger)");
    else if (p->state == 'D')
        strbuf_addf(out, "waits in the kernel (disk or network file system)");
    else
        strbuf_addf(out, "has not called hvd.init, or does not answer");
}

static void describe_operation(const struct view_job *j, const struct view_rank *r,
                               struct strbuf *out)
{
    const struct view_wait *w = wait_of(j, r);

    strbuf_addf(out, "in ");
    view_add_operation(out, r->look.op, r->look.name);
    if (w != NULL) {
        strbuf_addf(out, ", waits for rank%s ", w->missing_count > 1 ? "s" : "");
        strbuf_add_ranks(out, w->missing, j->size);
    }
    if (r->look.open > 1)
        strbuf_addf(out, " (%u under way)", r->look.open);
}

void view_describe_rank(const struct view_job *j, const struct view_rank *r,
                        struct strbuf *out)
{
    const struct look_rank *l = &r->look;

    if (r->has_process && r->process.is_ended)
        describe_end(&r->process, out);
    else if (!r->has_look)
        describe_process(r, out);
    else if (l->phase != LOOK_PHASE_RUNNING)
        strbuf_addf(out, "%s%s%s", look_phase_text(l->phase), l->text[0] != '\0' ? ": " : "",
                    l->text);
    else if (l->open > 0)
        describe_operation(j, r, out);
    else
        strbuf_addf(out, "%s", l->text[0] != '\0' ? l->text : "in no operation");
}

double view_rank_age(const struct view_rank *r)
{
    const struct look_rank *l = &r->look;

    if (!r->has_look || (r->has_process && r->process.is_ended))
        return -1;
    if (l->phase == LOOK_PHASE_FORMING || l->phase == LOOK_PHASE_ENDING)
        return less(l->now_us, l->phase_us) / 1e6;
    return l->open > 0 ? less(l->now_us, l->since_us) / 1e6 : -1;
}
