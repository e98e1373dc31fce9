/* node.h: --rendezvous HOST:PORT: the same command on every node, without ssh. */
#ifndef HVD_LAUNCH_NODE_H
#define HVD_LAUNCH_NODE_H

#include "launch/settings.h"

/* Fills s->node, and s->hosts where the user has named none.
 * Errors: HVD_INVALID, HVD_SYS (the key file). */
enum hvd_status node_read(struct settings *s, struct hvd_error *err);

/* "host:port" or "[address]:port" */
enum hvd_status node_parse_place(const char *text, char host[HVD_HOST_MAX], int *port_p,
                                 struct hvd_error *err);
/* 64 hexadecimal digits, and white space after them. */
bool node_parse_key(const char *text, size_t bytes, uint8_t key[HVD_KEY_BYTES]);
/* The same in a file nobody else can read. */
enum hvd_status node_read_key(const char *path, uint8_t key[HVD_KEY_BYTES],
                              struct hvd_error *err);

#endif
