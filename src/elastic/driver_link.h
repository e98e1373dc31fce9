/*
 * driver_link.h: this process as a worker of an elastic job: one connection to the driver, opened
 * by the first hvd_init, which lives as long as the process, over all generations.  A thread
 * reads it, so that updates are known at once and PINGs are answered whatever the training
 * does.
 */
#ifndef HVD_ELASTIC_DRIVER_LINK_H
#define HVD_ELASTIC_DRIVER_LINK_H

#include "wire/elastic_message.h"

struct driver_link;

struct driver_link_options {
    const char *addrs;                  /* comma-separated */
    uint16_t port;
    const uint8_t *key;                 /* HVD_KEY_BYTES */
    const char *job_id;
    int32_t worker;                     /* the number of this process */
    uint64_t deadline_us;
    /* Called by the thread: the job is over. */
    void (*on_verdict)(const struct hvd_error *verdict);
};

/* Connects and proves key and number.  It lasts until the process
 * ends.  Errors: HVD_TIMEOUT, HVD_AUTH, HVD_VERSION, HVD_SYS. */
enum hvd_status driver_link_open(const struct driver_link_options *opt,
                                 struct driver_link **link_p, struct hvd_error *err);
/* In a forked child: forgets it, without a word to the driver. */
void driver_link_forget(struct driver_link *link);

/* Says READY and waits for the assignment.  Blocks: as long as the driver lives; it ends
 * every wait itself.  Owns: the caller, elastic_assign_release.
 * Errors: HVD_RETIRED, HVD_ABORTED (the job is over), HVD_PEER_LOST (the driver has gone). */
enum hvd_status driver_link_join(struct driver_link *link,
                                 const struct elastic_ready *ready,
                                 struct elastic_assign *assign, struct hvd_error *err);

void driver_link_progress(struct driver_link *link, uint32_t generation,
                          enum elastic_progress what);
void driver_link_leave(struct driver_link *link);

/* The newest update that the present assignment does not contain; bits 0: none.
 * Thread: any.  Blocks: never. */
unsigned driver_link_pending(const struct driver_link *link, uint32_t *version_p);

#endif
