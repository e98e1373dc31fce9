/*
 * rdv_message.h: what worker and rendezvous server say to each other once both have
 * proved the job key.  Byte formats at the top of rdv_message.c.
 *
 *   worker                      server
 *   ENTRY (once)        ->
 *                       <-      TABLE when all have come, or VERDICT
 *                       <-      VERDICT at any later time: the job is over
 *   VERDICT (once)      ->      after the table: why the job has failed, when it leaves
 */
#ifndef HVD_WIRE_RDV_MESSAGE_H
#define HVD_WIRE_RDV_MESSAGE_H

#include "wire/table.h"

#define RDV_HEADER 8
#define RDV_BODY_MAX (16u << 20)
#define RDV_ENTRY_MAX (4 + TABLE_ENTRY_MAX)
#define RDV_VERDICT_MAX (8 + HVD_ERROR_TEXT)

/* Those from RDV_READY on belong to elastic jobs: elastic_message.h. */
enum rdv_kind { RDV_ENTRY = 1, RDV_TABLE, RDV_VERDICT, RDV_READY, RDV_ASSIGN, RDV_RETIRE,
                RDV_PROGRESS, RDV_NOTICE, RDV_UPDATE, RDV_PING, RDV_PONG, RDV_JOIN,
                RDV_BYTES, RDV_KIND_END };

void put_rdv_header(uint8_t header[RDV_HEADER], enum rdv_kind kind, size_t n);
/* limit: the largest body this side takes.  Errors: HVD_PROTO. */
enum hvd_status get_rdv_header(const uint8_t header[RDV_HEADER], size_t limit,
                               enum rdv_kind *kind_p, size_t *n_p, struct hvd_error *err);

/* wait_ms: how long the worker is going to wait, so that the server can answer before.
 * Owns: the caller frees *bytes_p. */
enum hvd_status put_rdv_entry(const struct table_entry *e, uint32_t wait_ms,
                              uint8_t **bytes_p, size_t *n_p, struct hvd_error *err);
enum hvd_status get_rdv_entry(struct table_entry *e, uint32_t *wait_ms_p,
                              const uint8_t *bytes, size_t n, struct hvd_error *err);

/* The number of bytes. */
size_t put_rdv_verdict(const struct hvd_error *verdict, uint8_t bytes[RDV_VERDICT_MAX]);
enum hvd_status get_rdv_verdict(struct hvd_error *verdict, const uint8_t *bytes, size_t n,
                                struct hvd_error *err);

#endif
