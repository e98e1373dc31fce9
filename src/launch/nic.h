/* nic.h: this machine's network interfaces, and whether a host name means this machine. */
#ifndef HVD_LAUNCH_NIC_H
#define HVD_LAUNCH_NIC_H

#include "base/error.h"
#include "base/strbuf.h"

/* Appends the names of the interfaces that hold 127.0.0.1, comma-separated. */
void nic_add_loopback(struct strbuf *names);

/* Appends this machine's numeric addresses, comma-separated: of the interfaces named, in
 * that order; with none named of all that are up, loopback and link-local left out. */
void nic_add_addresses(char *const *names, int name_count, struct strbuf *addrs);

bool nic_exists(const char *name);

/* True: the name is this machine's own, or resolves to 127/8, ::1 or an address of one of
 * its interfaces.  Names that do not resolve are not local.  Blocks: for the resolver. */
bool nic_is_local_host(const char *host);

#endif
