/*
 * formed.c: what the log says, at the level info, of a job that has formed: rank 0 the hosts
 * with their ranks, every rank its own address and how it reaches the others.
 */
#include "api/formed.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/strbuf.h"

#include <stdlib.h>

#define LOG_COMPONENT "api"

static void add_host(struct strbuf *out, const struct mesh_topology *topo,
                     const struct table *table, int host, bool *member)
{
    const struct table_entry *first = NULL;

    for (int r = 0; r < topo->size; r++) {
        member[r] = topo->host_of[r] == host;
        if (member[r] && first == NULL)
            first = &table->entries[r];
    }
    strbuf_addf(out, "%s%s (ranks ", host > 0 ? ", " : "",
                first != NULL ? first->host : "?");
    strbuf_add_ranks(out, member, topo->size);
    for (int i = 0; first != NULL && i < first->addr_count; i++)
        strbuf_addf(out, "%s%s", i > 0 ? ", " : "; ", first->addrs[i]);
    strbuf_addf(out, ")");
}

static void log_hosts(const struct mesh_topology *topo, const struct table *table)
{
    bool *member = calloc((size_t)topo->size, sizeof *member);
    struct strbuf out;

    strbuf_init(&out);
    for (int h = 0; member != NULL && h < topo->host_count; h++)
        add_host(&out, topo, table, h, member);
    if (member != NULL && !out.failed)
        log_info("%d ranks on %d hosts: %s", topo->size, topo->host_count, out.text);
    strbuf_release(&out);
    free(member);
}

void formed_log(const struct mesh *mesh, const struct table *table, uint64_t since_us)
{
    const struct mesh_topology *topo = mesh_topology(mesh);
    const struct table_entry *self = &table->entries[topo->rank];
    int far = topo->size - topo->local_size;
    size_t board;

    if (topo->rank == 0)
        log_info("generation %u of the job", table->generation);
    if (topo->rank == 0)
        log_hosts(topo, table);
    log_info("rank %d of %d on %s, port %u: %d ranks of this host by %s, %d of others by TCP; "
             "formed in %.0f ms", topo->rank, topo->size, self->host, self->port,
             topo->local_size - 1,
             mesh_board(mesh, &board) != NULL ? "shared memory" : "TCP", far,
             (double)(clock_us() - since_us) / 1e3);
}
