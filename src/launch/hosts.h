/*
 * hosts.h: the hosts of a job, as the user names them.  Names are never canonicalised:
 * localhost and 127.0.0.1 are two hosts.
 */
#ifndef HVD_LAUNCH_HOSTS_H
#define HVD_LAUNCH_HOSTS_H

#include "base/error.h"
#include "horovod/driver.h"

#define HOSTS_MAX 65536                 /* more is a broken file, not a cluster */
#define HOST_SLOTS_MAX 65536

struct host {
    char name[HVD_HOST_MAX];            /* passes host_name_is_valid */
    int slots;                          /* 1 .. HOST_SLOTS_MAX */
};

struct host_list {
    struct host *items;                 /* in the order given, no name twice */
    int count, capacity;
};

/* "a:2,[::1]:4".  The slots of a name that occurs again are added to its first place.
 * Owns: the caller, hosts_release, also after a failure.
 * Errors: HVD_INVALID, whose text contains "Invalid host input"; HVD_NOMEM. */
enum hvd_status hosts_parse(const char *text, struct host_list *list,
                            struct hvd_error *err);

/* Lines "name slots=N" of a hostfile; `origin` is its name in messages. */
enum hvd_status hosts_parse_lines(const char *text, size_t bytes, const char *origin,
                                  struct host_list *list, struct hvd_error *err);
enum hvd_status hosts_read_file(const char *path, struct host_list *list,
                                struct hvd_error *err);
void hosts_release(struct host_list *list);

/* Letters, digits, '_', '.', '-' (and ':' '%' of an IPv6 address), not starting with '-',
 * so that a name can never become an option of ssh. */
bool host_name_is_valid(const char *name, size_t bytes);

int hosts_slot_count(const struct host_list *list);

#endif
