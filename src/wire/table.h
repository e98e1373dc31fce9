/*
 * table.h: what the workers of a generation tell each other through the rendezvous
 * server: one entry per rank, and the codec of the messages that carry them.  The byte
 * formats stand at the top of table.c.
 */
#ifndef HVD_WIRE_TABLE_H
#define HVD_WIRE_TABLE_H

#include "base/error.h"

#define TABLE_ADDRS 16
#define TABLE_ADDR_BYTES 48             /* numeric text of an address */
#define TABLE_RANKS 65536               /* more are refused */
#define TABLE_ENTRY_MAX 2048            /* bytes of an encoded entry at most */

/* What one worker says about itself. */
struct table_entry {
    int32_t rank, size;
    int32_t local_rank, local_size, cross_rank, cross_size;    /* -1: not given */
    int32_t pid;
    uint32_t generation;
    uint16_t port;                      /* of its mesh listener */
    uint8_t addr_count;
    char addrs[TABLE_ADDRS][TABLE_ADDR_BYTES];  /* loopback only if nothing else */
    char host[254];                     /* HOROVOD_HOSTNAME or the machine's name */
    uint8_t machine[16];                /* equal on ranks that can share memory: hash of
                                         * boot id, namespaces and the host name */
    char local_path[108];               /* "@name" of its host's meeting, "" if it
                                         * offers none */
    char version[32];                   /* of the library */
    uint8_t config_hash[16];            /* of what all ranks must agree on (security
                                         * level, static process sets, dynamic sets) */
    char config_text[512];              /* the same as text, for the error message */
};

struct table {
    uint32_t generation;
    int count;
    struct table_entry *entries;        /* by rank */
};

void table_release(struct table *t);

/* Bytes of entry or table; *n_p is set.  Owns: the caller frees *bytes_p, and releases a
 * table it got.  After a failure nothing is owned.  Errors: HVD_PROTO, HVD_NOMEM. */
enum hvd_status put_entry(const struct table_entry *e, uint8_t **bytes_p, size_t *n_p,
                          struct hvd_error *err);
enum hvd_status get_entry(struct table_entry *e, const uint8_t *bytes, size_t n,
                          struct hvd_error *err);
enum hvd_status put_table(const struct table *t, uint8_t **bytes_p, size_t *n_p,
                          struct hvd_error *err);
enum hvd_status get_table(struct table *t, const uint8_t *bytes, size_t n,
                          struct hvd_error *err);

#endif
