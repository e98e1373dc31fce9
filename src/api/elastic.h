/* elastic.h: this process in an elastic job: what job.c asks before a generation forms. */
#ifndef HVD_API_ELASTIC_H
#define HVD_API_ELASTIC_H

#include "api/job.h"
#include "wire/elastic_message.h"

/* Until the driver has spoken, this worker may become any rank of any size. */
void elastic_prepare(struct config *conf);

/* Asks the driver for a place in the next generation and puts it into job->conf and *table.
 * `self` is what this worker says of itself; failed: the last try did not work.
 * Blocks: as driver_link_join.  Owns: the caller, table_release. */
enum hvd_status elastic_join(struct job *job, const struct table_entry *self,
                             const struct hvd_error *failed, struct table *table,
                             struct hvd_error *err);

/* The mesh of the generation is there. */
void elastic_formed(const struct job *job);

/* Why the generation ended, for the next READY; NULL: in order. */
void elastic_ended(const struct hvd_error *verdict);

/* In a forked child. */
void elastic_forget(void);

/* job.c: fails the job with the verdict of the driver. */
void job_fail(const struct hvd_error *verdict);

#endif
