/*
 * launch_prepare.c: from settings to a launch with agents under way: who runs where, over
 * which network, the server, the key.
 *
 * 1. The local agent is forked before this process has a thread or the key.
 */
#include "base/log.h"
#include "base/secret.h"
#include "launch/launch_int.h"
#include "launch/nic.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LISTEN_MAX 66                   /* addresses of the server */

struct agent_link *launch_add_link(struct launch *job, const char *host, bool is_local)
{
    struct agent_link *link = &job->links[job->link_count++];

    *link = (struct agent_link){.job = job, .host = host, .is_local = is_local,
                          .error_fd = -1};
    strbuf_init(&link->errors);
    job->has_remote |= !is_local;
    return link;
}

/* --rendezvous: the ranks of this node, whatever it is called. */
static void make_node_link(struct launch *job)
{
    int host = job->settings->node.rank;
    struct agent_link *link = launch_add_link(job, job->settings->hosts.items[host].name, true);

    for (int r = 0; r < job->settings->np; r++)
        if (job->slots[r].host == host) {
            job->ranks[r].link = link;
            link->rank_count++;
            job->mine++;
        }
}

/* One link for all names of this machine, one for each other host. */
static void make_links(struct launch *job)
{
    struct agent_link *local = NULL, *link = NULL;
    int host = -1;

    job->mine = job->settings->np;
    launch_say(job, "Filtering local host names.");
    for (int r = 0; r < job->settings->np; r++) {
        if (job->slots[r].host != host) {
            host = job->slots[r].host;
            if (!nic_is_local_host(launch_rank_host(job, r)))
                link = launch_add_link(job, launch_rank_host(job, r), false);
            else if (local != NULL)
                link = local;
            else
                link = local = launch_add_link(job, launch_rank_host(job, r), true);
        }
        job->ranks[r].link = link;
        link->rank_count++;
    }
}

static void say_hosts(struct launch *job)
{
    struct strbuf names;

    if (!job->settings->verbose)
        return;
    strbuf_init(&names);
    for (int i = 0; i < job->link_count; i++)
        if (!job->links[i].is_local)
            strbuf_addf(&names, "%s%s", names.length > 0 ? " " : "", job->links[i].host);
    if (job->has_remote) {
        output_say(job->output, 1, "Remote host found: %s", names.text);
        launch_say(job, "Checking ssh on all remote hosts.");
    } else {
        launch_say(job, "All hosts are local, finding the interfaces with address "
                         "127.0.0.1");
        output_say(job->output, 1, "Local interface found %s", job->nics);
    }
    strbuf_release(&names);
}

static enum hvd_status choose_network(struct launch *job, struct hvd_error *err)
{
    const struct settings *s = job->settings;
    struct strbuf names;

    strbuf_init(&names);
    strbuf_init(&job->addrs);
    for (int i = 0; i < s->nic_count; i++) {
        if (!nic_exists(s->nics[i])) {
            strbuf_release(&names);
            if (job->has_remote)
                continue;
            return error_set(err, HVD_INVALID, -1, "network interface %s: there is none of "
                             "this name here", s->nics[i]);
        }
    }
    for (int i = 0; i < s->nic_count; i++)
        strbuf_addf(&names, "%s%s", i > 0 ? "," : "", s->nics[i]);
    if (s->nic_count == 0 && !job->has_remote && s->node.count < 2 && s->discovery == NULL &&
        s->join_port == 0)
        nic_add_loopback(&names);
    if (job->has_remote || s->discovery != NULL || s->join_port > 0 ||
        (s->node.count > 0 && s->node.rank == 0))
        nic_add_addresses(s->nics, s->nic_count, &job->addrs);
    job->nics = strdup(names.text);
    strbuf_release(&names);
    if (job->nics == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for interface names");
    if (job->has_remote && job->addrs.length == 0)
        return error_set(err, HVD_INVALID, -1, "this machine has no network address that "
                         "other hosts could reach%s", s->nic_count > 0
                         ? " on the interfaces given" : "");
    return HVD_OK;
}

/* Loopback and what other hosts reach; list points into the copy that is returned. */
static char *list_addresses(const struct launch *job, const char *list[LISTEN_MAX],
                            int *count_p)
{
    char *copy = strdup(job->addrs.text), *rest = NULL;

    list[0] = "127.0.0.1";
    *count_p = 1;
    for (char *addr = copy == NULL ? NULL : strtok_r(copy, ",", &rest);
         addr != NULL && *count_p < LISTEN_MAX; addr = strtok_r(NULL, ",", &rest))
        if (strcmp(addr, list[0]) != 0)
            list[(*count_p)++] = addr;
    return copy;
}

static enum hvd_status start_driver(struct launch *job, struct hvd_error *err)
{
    const char *list[LISTEN_MAX];
    int count;
    char *copy = list_addresses(job, list, &count);
    enum hvd_status status = elastic_listen(job, list, count, err);

    free(copy);
    return status;
}

static enum hvd_status start_server(struct launch *job, struct hvd_error *err)
{
    const char *list[LISTEN_MAX];
    struct hvd_server_options opt = {
        .size = sizeof opt, .key = job->key, .job_id = job->job_id, .listen_addrs = list,
        .worker_count = job->settings->np,
        .port = (uint16_t)job->settings->node.port,
        .timeout_s = job->settings->timeout_s, .heard = launch_server_heard, .context = job};
    enum hvd_status status;
    char *copy;

    job->port = job->settings->node.port;
    if (job->settings->node.count > 0 && job->settings->node.rank != 0)
        return HVD_OK;
    copy = list_addresses(job, list, &opt.listen_addr_count);
    status = hvd_server_new(&opt, &job->server, err);
    if (status == HVD_OK)
        job->port = hvd_server_port(job->server);
    free(copy);
    return status;
}

static enum hvd_status make_identity(struct launch *job, struct hvd_error *err)
{
    const struct node_settings *node = &job->settings->node;
    uint8_t random[HVD_KEY_BYTES];

    job->key = secret_new(HVD_KEY_BYTES);
    if (job->key == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the job key");
    if (node->count > 0) {
        /* All launchers must come to the same. */
        memcpy(job->key, node->key, HVD_KEY_BYTES);
        snprintf(job->job_id, sizeof job->job_id, "%.26s:%d", node->host, node->port);
        return HVD_OK;
    }
    TRY(hvd_key_generate(job->key, err));
    TRY(hvd_key_generate(random, err));
    for (int i = 0; i < 16; i++)
        snprintf(job->job_id + 2 * i, 3, "%02x", random[i]);
    return HVD_OK;
}

static void on_result_lost(struct duplex *ch, const struct hvd_error *err)
{
    struct launch *job = ch->owner;

    /* Whoever called horovod.run has gone. */
    launch_begin_end(job, (uint32_t)job->settings->grace_ms);
}

static enum hvd_status on_result_frame(struct duplex *ch, unsigned type,
                                       const char *body, size_t bytes,
                                       struct hvd_error *err)
{
    return error_set(err, HVD_PROTO, -1, "the result descriptor is for writing");
}

static enum hvd_status open_result(struct launch *job, struct hvd_error *err)
{
    if (job->settings->result_fd < 0)
        return HVD_OK;
    job->result.owner = job;
    job->result.on_frame = on_result_frame;
    job->result.on_lost = on_result_lost;
    job->has_result = true;
    return duplex_open(&job->result, &job->loop, job->settings->result_fd,
                        job->settings->result_fd, err);
}

/* The local agent is forked before this process has a thread or the key. */
static enum hvd_status open_links(struct launch *job, struct hvd_error *err)
{
    for (int i = 0; i < job->link_count; i++)
        if (job->links[i].is_local)
            TRY(agent_link_open_local(&job->links[i], err));
    for (int i = 0; i < job->link_count; i++)
        if (!job->links[i].is_local)
            TRY(agent_link_open_remote(&job->links[i], err));
    return HVD_OK;
}

static void on_pressure(void *owner, bool is_high)
{
    struct launch *job = owner;

    for (int i = 0; i < job->link_count; i++) {
        if (!job->links[i].has_channel)
            continue;
        if (is_high)
            duplex_pause(&job->links[i].channel);
        else
            duplex_resume(&job->links[i].channel);
    }
}

/* Hosts come and go: there is an agent here, and others when the driver asks for them. */
static enum hvd_status prepare_elastic(struct launch *job, struct hvd_error *err)
{
    const struct settings *s = job->settings;

    for (int i = 0; i < s->hosts.count; i++)
        job->has_remote |= !nic_is_local_host(s->hosts.items[i].name);
    job->links = calloc(ELASTIC_HOSTS, sizeof *job->links);
    if (job->links == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the hosts");
    TRY(elastic_new(job, err));
    launch_add_link(job, "localhost", true);
    TRY(choose_network(job, err));
    TRY(open_links(job, err));
    launch_watch_signals(job);
    TRY(make_identity(job, err));
    return start_driver(job, err);
}

enum hvd_status launch_prepare(struct launch *job, struct hvd_error *err)
{
    const struct settings *s = job->settings;
    struct output_options out = {
        .ranks = s->is_elastic ? 0 : s->np, .directory = s->output_dir, .timestamps = s->timestamps,
        .stdout_fd = STDOUT_FILENO, .stderr_fd = STDERR_FILENO,
        .on_pressure = on_pressure, .owner = job};

    if (s->is_elastic) {
        TRY(output_new(&job->loop, &out, &job->output, err));
        TRY(open_result(job, err));
        return prepare_elastic(job, err);
    }
    job->slots = calloc((size_t)s->np, sizeof *job->slots);
    job->ranks = calloc((size_t)s->np, sizeof *job->ranks);
    job->links = calloc((size_t)s->np, sizeof *job->links);
    if (job->slots == NULL || job->ranks == NULL || job->links == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for %d ranks", s->np);
    job->rank_count = s->np;
    for (int r = 0; r < s->np; r++) {
        job->ranks[r].label = r;
        snprintf(job->ranks[r].name, sizeof job->ranks[r].name, "%d", r);
    }
    TRY(output_new(&job->loop, &out, &job->output, err));
    TRY(open_result(job, err));
    TRY(assign_slots(&s->hosts, s->np, job->slots, err));
    if (s->node.count > 0)
        make_node_link(job);
    else
        make_links(job);
    if (job->mine == 0)
        return error_set(err, HVD_INVALID, -1, "node %d has no rank of the %d", s->node.rank,
                         s->np);
    TRY(choose_network(job, err));
    say_hosts(job);
    TRY(open_links(job, err));
    launch_watch_signals(job);
    TRY(make_identity(job, err));
    return start_server(job, err);
}
