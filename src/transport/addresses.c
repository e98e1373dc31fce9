/*
 * addresses.c: under which addresses this machine can be reached, and which machine it is.
 *
 * 1. Offered: addresses of interfaces that are up, IPv4 first, then IPv6; without such a
 *    one link-local ones, without those addresses of interfaces that see no cable (or do
 *    not see it yet), without those loopback.  Interfaces asked for by name: as asked.
 * 2. A link-local address is offered without its scope, which means nothing on another
 *    machine: whoever dials tries it on each of its own interfaces.
 * 3. Two ranks are on one machine when the kernel (boot id), the process, user, time and
 *    network namespaces and a host name given by the launcher are the same: then memory,
 *    descriptors, pids, clocks and abstract socket names mean the same to both.
 */
#include "transport_int.h"

#include "base/hash.h"
#include "base/strbuf.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <unistd.h>

enum quality { USELESS, LOOPBACK, IDLE, LINK_LOCAL, GLOBAL_6, GLOBAL_4 };

static bool is_named(const char *list, const char *name)
{
    size_t n = strlen(name);

    for (const char *at = list; *at != 0; at += strcspn(at, ",")) {
        at += strspn(at, ", ");
        if (strncmp(at, name, n) == 0 && (at[n] == 0 || at[n] == ',' || at[n] == ' '))
            return true;
    }
    return false;
}

static enum quality judge(const struct ifaddrs *i, const char *iface)
{
    const struct sockaddr *a = i->ifa_addr;
    const struct in6_addr *six;

    if (a == NULL || !(i->ifa_flags & IFF_UP) ||
        (a->sa_family != AF_INET && a->sa_family != AF_INET6))
        return USELESS;
    if (iface[0] != 0)
        return !is_named(iface, i->ifa_name) ? USELESS
               : a->sa_family == AF_INET     ? GLOBAL_4
                                             : GLOBAL_6;
    if (i->ifa_flags & IFF_LOOPBACK)
        return LOOPBACK;
    if (!(i->ifa_flags & IFF_RUNNING))
        return IDLE;
    if (a->sa_family == AF_INET)
        return GLOBAL_4;
    six = &((const struct sockaddr_in6 *)a)->sin6_addr;
    return IN6_IS_ADDR_LINKLOCAL(six) ? LINK_LOCAL : GLOBAL_6;
}

socklen_t address_bytes(const struct sockaddr_storage *at)
{
    return at->ss_family == AF_INET ? sizeof(struct sockaddr_in)
                                    : sizeof(struct sockaddr_in6);
}

static void add(struct address *out, const struct sockaddr *a)
{
    const void *bytes;

    *out = (struct address){0};
    if (a->sa_family == AF_INET)
        bytes = &((const struct sockaddr_in *)a)->sin_addr;
    else
        bytes = &((const struct sockaddr_in6 *)a)->sin6_addr;
    inet_ntop(a->sa_family, bytes, out->text, sizeof out->text);
    memcpy(&out->at, a,
           a->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                   : sizeof(struct sockaddr_in6));
}

static enum hvd_status none_found(const struct ifaddrs *all, const char *iface,
                                  struct hvd_error *err)
{
    struct strbuf names;
    enum hvd_status status;

    strbuf_init(&names);
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next)
        if (judge(i, "") != USELESS && !is_named(names.text, i->ifa_name))
            strbuf_addf(&names, "%s%s", names.length > 0 ? ", " : "", i->ifa_name);
    if (iface[0] != 0)
        status = error_set(err, HVD_INVALID, -1,
                           "HOROVOD_GLOO_IFACE is %s, but this host has %s", iface,
                           names.length > 0 ? names.text : "no interface that is up");
    else
        status = error_set(err, HVD_SYS, -1, "this host has no network address, not even "
                                             "a loopback one");
    strbuf_release(&names);
    return status;
}

enum hvd_status addresses_find(const char *iface, struct address out[TABLE_ADDRS],
                               int *count_p, struct hvd_error *err)
{
    struct ifaddrs *all = NULL;
    enum hvd_status status = HVD_OK;
    int count = 0;

    if (getifaddrs(&all) != 0)
        return error_sys(err, -1, "list of network interfaces");
    for (int q = GLOBAL_4; q >= LOOPBACK; q--) {
        if (count > 0 && q <= LINK_LOCAL)
            break;
        for (const struct ifaddrs *i = all; i != NULL && count < TABLE_ADDRS;
             i = i->ifa_next)
            if ((int)judge(i, iface) == q)
                add(&out[count++], i->ifa_addr);
    }
    if (count == 0)
        status = none_found(all, iface, err);
    *count_p = count;
    freeifaddrs(all);
    return status;
}

/* ---- Dialling -------------------------------------------------------------------- */

static int on_each_interface(const struct sockaddr_in6 *six, struct sockaddr_storage *out,
                             int capacity)
{
    struct if_nameindex *all = if_nameindex();
    int count = 0;

    for (struct if_nameindex *i = all; i != NULL && i->if_index != 0 && count < capacity;
         i++) {
        struct sockaddr_in6 scoped = *six;

        scoped.sin6_scope_id = i->if_index;
        memcpy(&out[count++], &scoped, sizeof scoped);
    }
    if (all != NULL)
        if_freenameindex(all);
    return count;
}

int addresses_resolve(const char *text, uint16_t port, struct sockaddr_storage *out,
                      int capacity)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port)};

    if (capacity < 1 || strnlen(text, TABLE_ADDR_BYTES) == TABLE_ADDR_BYTES)
        return 0;
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, text, &four.sin_addr) == 1) {
        memcpy(out, &four, sizeof four);
        return 1;
    }
    if (inet_pton(AF_INET6, text, &six.sin6_addr) != 1)
        return 0;
    if (IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr))
        return on_each_interface(&six, out, capacity);
    memcpy(out, &six, sizeof six);
    return 1;
}

/* ---- Which machine --------------------------------------------------------------- */

static void add_file(struct strbuf *buf, const char *path)
{
    char text[128];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text) : -1;

    if (n > 0)
        strbuf_add(buf, text, (size_t)n);
    if (fd >= 0)
        close(fd);
}

static void add_link(struct strbuf *buf, const char *path)
{
    char text[128];
    ssize_t n = readlink(path, text, sizeof text);

    if (n > 0)
        strbuf_add(buf, text, (size_t)n);
}

/* 8 bytes of the text, whose first character is ours. */
static void put_codes(uint8_t out[8], struct strbuf *id)
{
    for (int i = 0; i < 2; i++) {
        uint32_t code;

        id->text[0] = (char)('0' + i);
        code = hash_code(id->text, id->length);
        memcpy(out + 4 * i, &code, 4);
    }
}

/* The first half tells the kernel, the second half all of rule 3. */
bool machine_is_same_kernel(const uint8_t a[16], const uint8_t b[16])
{
    return memcmp(a, b, 8) == 0;
}

void machine_identify(const struct config *conf, uint8_t machine[16], char host[254])
{
    struct strbuf id;

    memset(host, 0, 254);
    strbuf_init(&id);
    strbuf_add(&id, "0", 1);
    add_file(&id, "/proc/sys/kernel/random/boot_id");
    put_codes(machine, &id);
    add_link(&id, "/proc/self/ns/pid");
    add_link(&id, "/proc/self/ns/user");
    add_link(&id, "/proc/self/ns/time");
    add_link(&id, "/proc/self/ns/net");
    strbuf_addf(&id, "%s", conf->hostname);
    put_codes(machine + 8, &id);
    strbuf_release(&id);
    if (conf->hostname[0] != 0)
        strncpy(host, conf->hostname, 253);
    else if (gethostname(host, 253) != 0)
        strcpy(host, "unknown");
}
