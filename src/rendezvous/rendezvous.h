/*
 * rendezvous.h: the worker's end of the rendezvous: one long-lived connection to the
 * server of driver.h, over which the complete table is pushed.
 */
#ifndef HVD_RENDEZVOUS_RENDEZVOUS_H
#define HVD_RENDEZVOUS_RENDEZVOUS_H

#include "wire/table.h"

struct config;
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
/* Tells the server why the job has failed here, so that whoever started the job can name
 * the rank at fault; HVD_SHUTDOWN: a rank left in order while others needed it.  Blocks:
 * never; a server that has gone, or takes nothing, is not told.  Thread: any, also beside
 * rdv_poll. */
void rdv_report(struct rdv_client *client, const struct hvd_error *verdict);
void rdv_close(struct rdv_client *client);

/* ---- The job key ------------------------------------------------------------------ */

/*
 * The key from HOROVOD_KEY_FD, HOROVOD_KEY_SOCKET, HOROVOD_KEY_FILE or HOROVOD_KEY; if none
 * of them is given, the one an earlier call in this process has read.  A descriptor is
 * closed and its variable removed; HOROVOD_KEY is overwritten and removed at once.
 * Owns: the caller; key should be secret memory (base/secret.h).  Blocks: 5 s at most.
 * *found_p false with HVD_OK: there is no key.  Thread: any.
 * Errors: HVD_INVALID (not 64 digits, file open to others, a link, a descriptor that is
 * something else), HVD_SYS, HVD_PEER_LOST (nobody answers at the socket).
 */
enum hvd_status job_key_read(const struct config *conf, uint8_t key[32], bool *found_p,
                             struct hvd_error *err);

#endif
