/*
 * rendezvous.h: the worker's end of the rendezvous: one long-lived connection to the
 * server of driver.h, over which the complete table is pushed.
 */
#ifndef HVD_RENDEZVOUS_RENDEZVOUS_H
#define HVD_RENDEZVOUS_RENDEZVOUS_H

#include "wire/table.h"

struct rdv_client;

struct rdv_options {
    const char *addrs;                  /* comma-separated, numeric or names */
    uint16_t port;
    const uint8_t *key;                 /* HVD_KEY_BYTES */
    const char *job_id;
    uint32_t generation;
    uint64_t deadline_us;               /* on clock_us */
};

/* Connects (racing over the addresses), proves the key, sends `self`, and waits for the
 * table.  Blocks: until the deadline.  Errors: HVD_TIMEOUT names the ranks that are
 * missing, as the server knows them, with their hosts; HVD_AUTH; HVD_VERSION; HVD_SYS.
 * Owns: the caller, rdv_close and table_release. */
enum hvd_status rdv_join(const struct rdv_options *opt, const struct table_entry *self,
                         struct rdv_client **client_p, struct table *table_p,
                         struct hvd_error *err);

/* The connection, to be watched for a pushed abort; -1 once the server has gone, which
 * does not disturb a job that is formed. */
int rdv_fd(const struct rdv_client *client);
/* Reads what was pushed.  HVD_AGAIN: nothing; HVD_ABORTED: the job is over, err says why;
 * HVD_PEER_LOST: the server has gone. */
enum hvd_status rdv_poll(struct rdv_client *client, struct hvd_error *err);
void rdv_close(struct rdv_client *client);

#endif
