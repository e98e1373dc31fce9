/* nic.c: interfaces and local names, from getifaddrs and getaddrinfo. */
#include "launch/nic.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static void add_item(struct strbuf *list, const char *item)
{
    strbuf_addf(list, "%s%s", list->length > 0 ? "," : "", item);
}

static bool is_loopback(const struct sockaddr *sa)
{
    if (sa->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)sa)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)sa)->sin6_addr);
}

static bool is_link_local(const struct sockaddr *sa)
{
    if (sa->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)sa)->sin_addr.s_addr) >> 16 == 0xa9fe;
    return IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)sa)->sin6_addr);
}

static bool is_inet(const struct ifaddrs *i)
{
    return i->ifa_addr != NULL && (i->ifa_flags & IFF_UP) &&
           (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
}

static void add_text(struct strbuf *addrs, const struct sockaddr *sa)
{
    char text[INET6_ADDRSTRLEN];
    const void *bytes = sa->sa_family == AF_INET
                            ? (const void *)&((const struct sockaddr_in *)sa)->sin_addr
                            : &((const struct sockaddr_in6 *)sa)->sin6_addr;

    if (inet_ntop(sa->sa_family, bytes, text, sizeof text) != NULL)
        add_item(addrs, text);
}

void nic_add_loopback(struct strbuf *names)
{
    struct ifaddrs *all = NULL;

    if (getifaddrs(&all) != 0)
        return;
    for (struct ifaddrs *i = all; i != NULL; i = i->ifa_next)
        if (is_inet(i) && i->ifa_addr->sa_family == AF_INET && is_loopback(i->ifa_addr))
            add_item(names, i->ifa_name);
    freeifaddrs(all);
}

/* IPv4 first: it is what most networks of clusters route. */
static void add_of(const struct ifaddrs *all, const char *name, struct strbuf *addrs)
{
    static const int families[] = {AF_INET, AF_INET6};

    for (int f = 0; f < 2; f++)
        for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
            if (!is_inet(i) || i->ifa_addr->sa_family != families[f] ||
                is_link_local(i->ifa_addr))
                continue;
            if (name != NULL ? strcmp(name, i->ifa_name) == 0 : !is_loopback(i->ifa_addr))
                add_text(addrs, i->ifa_addr);
        }
}

void nic_add_addresses(char *const *names, int name_count, struct strbuf *addrs)
{
    struct ifaddrs *all = NULL;

    if (getifaddrs(&all) != 0)
        return;
    for (int i = 0; i < name_count; i++)
        add_of(all, names[i], addrs);
    if (name_count == 0)
        add_of(all, NULL, addrs);
    freeifaddrs(all);
}

bool nic_exists(const char *name)
{
    return if_nametoindex(name) != 0;
}

static bool is_same_address(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    return memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)b)->sin6_addr, 16) == 0;
}

static bool is_own_address(const struct ifaddrs *all, const struct sockaddr *sa)
{
    if (is_loopback(sa))
        return true;
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next)
        if (is_inet(i) && is_same_address(i->ifa_addr, sa))
            return true;
    return false;
}

bool nic_is_local_host(const char *host)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    struct ifaddrs *all = NULL;
    char own[256] = "";
    bool is_local = false;

    gethostname(own, sizeof own - 1);
    if (strcasecmp(host, "localhost") == 0 || strcasecmp(host, own) == 0)
        return true;
    if (getaddrinfo(host, NULL, &hints, &found) != 0)
        return false;
    if (getifaddrs(&all) == 0)
        for (struct addrinfo *a = found; a != NULL && !is_local; a = a->ai_next)
            is_local = is_own_address(all, a->ai_addr);
    if (all != NULL)
        freeifaddrs(all);
    freeaddrinfo(found);
    return is_local;
}
