/*
 * driver.h: the job side of libhvd, for horovodrun, horovod.run and Ray.
 *
 * A job has an id, a 32-byte key and generations.  The rendezvous server collects the
 * hello of every worker of a generation and pushes the complete table to all of them
 * when the last one has come.
 */
#ifndef HOROVOD_DRIVER_H
#define HOROVOD_DRIVER_H

#include "horovod/horovod.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define HVD_KEY_BYTES 32
#define HVD_HOST_MAX 254
#define HVD_ADDR_MAX 64                 /* text of one numeric address */

/* Fills key with random bytes from the kernel. */
enum hvd_status hvd_key_generate(uint8_t key[HVD_KEY_BYTES], struct hvd_error *err);

/* The key of every later hvd_init of this process that finds no HOROVOD_KEY_FD, _FILE or
 * HOROVOD_KEY; kept like one that came through those.  Thread: any.  Errors: HVD_SYS. */
enum hvd_status hvd_key_set(const uint8_t key[HVD_KEY_BYTES], struct hvd_error *err);

struct hvd_server;

struct hvd_server_options {
    uint32_t size;                      /* sizeof(struct hvd_server_options) */
    const uint8_t *key;                 /* HVD_KEY_BYTES */
    const char *job_id;                 /* "" allowed */
    const char *const *listen_addrs;    /* numeric; NULL: 127.0.0.1 only */
    int listen_addr_count;
    uint16_t port;                      /* 0: any */
    int worker_count;                   /* size of the first generation */
    double timeout_s;                   /* from the first hello until the last; 0: the
                                         * workers' own limits only */
    uint32_t generation;                /* number of the first generation */
};

/* Starts the server in a thread of its own.  Owns: the caller, hvd_server_free; nothing of
 * opt is kept.  Errors: HVD_INVALID, HVD_SYS (a port in use is named with its owner). */
enum hvd_status hvd_server_new(const struct hvd_server_options *opt,
                               struct hvd_server **server_p, struct hvd_error *err);
void hvd_server_free(struct hvd_server *server);

uint16_t hvd_server_port(const struct hvd_server *server);

/* A new generation of worker_count workers, numbered one higher; table entries of older
 * ones are refused, and workers that wait in an older one are told.  A worker_count that is
 * impossible (below 1), or no memory, is an abort. */
void hvd_server_next_generation(struct hvd_server *server, int worker_count);

/* What the server knows: one line per rank, for status lines and for the names of those
 * who are missing:
 *   rank 3 host node1 pid 4242 waiting since 0.8 s      waiting | running | gone | missing
 *   rank 4 missing                                      it has never come
 * Returns the length of the whole text; the buffer gets what fits, and always a 0. */
size_t hvd_server_status(struct hvd_server *server, char *buffer, size_t capacity);

/* Tells all connected workers, and those who still come in this generation, that the job is
 * over because of `why`; rank is the one at fault or -1. */
void hvd_server_abort(struct hvd_server *server, int rank, const char *why);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
