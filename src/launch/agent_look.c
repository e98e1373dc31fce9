/*
 * agent_look.c: LOOK and SEEN.  Workers are found behind their hatches, as descendants of the
 * agent: who they are is known from the kernel, not from what they say.
 */
#include "launch/agent_look.h"

#include "base/clock.h"
#include "launch/survey.h"

#include <stdio.h>
#include <unistd.h>

#define LIMIT_MS 800                    /* for workers that do not answer */

struct stat_line {
    char state;
    uint64_t rss_bytes;
};

/* /proc/PID/stat: "pid (name, may hold anything) S ppid ..."; the 24th is the pages. */
static bool read_stat_line(pid_t pid, struct stat_line *out)
{
    char path[64], text[1024], *at;
    long pages = 0;
    FILE *file;
    size_t n;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    if (file == NULL)
        return false;
    n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    at = strrchr(text, ')');
    if (at == NULL || sscanf(at + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u "
                             "%*d %*d %*d %*d %*d %*d %*u %*u %ld", &out->state,
                             &pages) != 2)
        return false;
    out->rss_bytes = (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return true;
}

static void put_workers(struct agent *agent, struct strbuf *out)
{
    list_each(node, &agent->workers) {
        struct worker *w = list_entry(node, struct worker, node);
        struct look_process p = {.rank = (int32_t)w->rank, .pid = (uint32_t)w->pid,
                                 .is_started = 1, .is_ended = !w->is_alive};
        struct stat_line line;

        if (!w->is_alive)
            continue;
        if (read_stat_line(w->pid, &line)) {
            p.state = line.state;
            p.rss_bytes = line.rss_bytes;
        }
        put_look_process(out, &p);
    }
}

static void on_seen(void *owner, const char *frames, size_t n)
{
    struct agent *agent = owner;
    uint64_t now_us = clock_us();
    uint32_t words[5] = {agent->look.id, (uint32_t)agent->look.asked_us,
                         (uint32_t)(agent->look.asked_us >> 32), (uint32_t)now_us,
                         (uint32_t)(now_us >> 32)};
    struct strbuf out;

    agent->look.survey = NULL;
    strbuf_init(&out);
    put_workers(agent, &out);
    if (n <= AGENT_FRAME_MAX / 2)
        strbuf_add(&out, frames, n);
    if (!out.failed)
        agent_put_words(duplex_out(&agent->channel), AGENT_SEEN, words, 5, out.text,
                        out.length);
    strbuf_release(&out);
    duplex_flush(&agent->channel);
}

static bool is_worker(void *owner, pid_t pid)
{
    return spawn_is_descendant(pid);
}

enum hvd_status agent_look_take(struct agent *agent, const char *body, size_t bytes,
                                struct hvd_error *err)
{
    struct look_question q;
    uint32_t words[3];
    size_t rest_bytes;
    const char *rest;

    TRY(agent_get_words(body, bytes, words, 3, &rest, &rest_bytes, err));
    agent_look_stop(agent);
    agent->look.id = words[0];
    agent->look.asked_us = clock_us();
    q = (struct look_question){words[1], words[2]};
    agent->look.survey = survey_start(&agent->loop, "rank", &q, LIMIT_MS,
                                      is_worker, on_seen, agent);
    if (agent->look.survey == NULL)
        on_seen(agent, "", 0);
    return HVD_OK;
}

void agent_look_stop(struct agent *agent)
{
    survey_cancel(agent->look.survey);
    agent->look.survey = NULL;
}
