/*
 * limits_tcp.c: loopback TCP between two processes, each on its CPU: round trips, and
 * payload per direction under each congestion control that may be chosen.
 */
#include "limits.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAYLOAD ((size_t)256 << 20)

/* False: the kernel does not allow that congestion control. */
static bool tune(int fd, const char *congestion)
{
    int on = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return congestion == NULL || setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion,
                                            (socklen_t)strlen(congestion)) == 0;
}

static void must(bool good, const char *what)
{
    if (!good) {
        perror(what);
        exit(1);
    }
}

static bool connect_pair(int pair[2], const char *congestion)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool allowed = tune(listener, congestion);

    must(bind(listener, (struct sockaddr *)&at, length) == 0, "bind");
    must(listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&at, &length) == 0, "getsockname");
    pair[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    allowed &= tune(pair[0], congestion);
    must(connect(pair[0], (struct sockaddr *)&at, length) == 0, "connect");
    pair[1] = accept(listener, NULL, NULL);
    must(pair[1] >= 0, "accept");
    tune(pair[1], NULL);
    close(listener);
    return allowed;
}

static void close_pair(int pair[2])
{
    close(pair[0]);
    close(pair[1]);
}

/* ---- Round trips ------------------------------------------------------------------- */

static void move_byte(int fd, bool out)
{
    char byte = 0;

    while ((out ? write(fd, &byte, 1) : read(fd, &byte, 1)) != 1)
        if (errno != EAGAIN)
            _exit(1);
}

static void bounce(int fd, int turns, bool first)
{
    for (int i = 0; i < turns; i++) {
        move_byte(fd, first);
        move_byte(fd, !first);
    }
}

static double round_trip_us(bool busy, int other_cpu, int turns)
{
    int pair[2];
    double start, us;
    pid_t child;

    connect_pair(pair, NULL);
    for (int i = 0; busy && i < 2; i++)
        fcntl(pair[i], F_SETFL, O_NONBLOCK);
    child = limits_fork();
    if (child == 0) {
        limits_pin(other_cpu);
        bounce(pair[1], turns, false);
        _exit(0);
    }
    limits_pin(0);
    start = limits_now();
    bounce(pair[0], turns, true);
    us = (limits_now() - start) / turns * 1e6;
    limits_join(child);
    close_pair(pair);
    return us;
}

/* ---- Bandwidth --------------------------------------------------------------------- */

struct way {
    size_t left;
    char *buffer;
    bool out;
};

static void move_some(int fd, struct way *w, size_t chunk)
{
    size_t wanted = w->left < chunk ? w->left : chunk;
    ssize_t n;

    if (wanted == 0)
        return;
    n = w->out ? send(fd, w->buffer, wanted, 0) : recv(fd, w->buffer, wanted, 0);
    if (n > 0)
        w->left -= (size_t)n;
    else if (n == 0 || errno != EAGAIN)
        _exit(1);
}

/* Both directions at once, each in pieces of at most `chunk`, as a runtime would. */
static void pump(int fd, struct way *out, struct way *in, size_t chunk)
{
    fcntl(fd, F_SETFL, O_NONBLOCK);
    while (out->left > 0 || in->left > 0) {
        struct pollfd p = {.fd = fd};
        size_t before = out->left + in->left;

        move_some(fd, out, chunk);
        move_some(fd, in, chunk);
        p.events = (short)((out->left > 0 ? POLLOUT : 0) | (in->left > 0 ? POLLIN : 0));
        if (out->left + in->left == before)
            poll(&p, 1, 1000);
    }
}

static double bandwidth(const char *congestion, bool both, size_t chunk)
{
    char *a = limits_map(chunk, PAGES_HUGE), *b = limits_map(chunk, PAGES_HUGE);
    struct way out = {PAYLOAD, a, true}, in = {both ? PAYLOAD : 0, b, false};
    int pair[2];
    double start, gbps = 0;
    pid_t child;

    if (connect_pair(pair, congestion)) {
        child = limits_fork();
        if (child == 0) {
            limits_pin(1);
            out.left = in.left;
            in.left = PAYLOAD;
            pump(pair[1], &out, &in, chunk);
            _exit(0);
        }
        limits_pin(0);
        start = limits_now();
        pump(pair[0], &out, &in, chunk);
        limits_join(child);
        gbps = (double)PAYLOAD / (limits_now() - start) / 1e9;
    }
    close_pair(pair);
    limits_unmap(a, chunk);
    limits_unmap(b, chunk);
    return gbps;
}

static void report_bandwidth(const char *congestion, bool both, size_t chunk)
{
    double values[RUNS];
    char name[80];

    for (int i = 0; i < RUNS; i++)
        if ((values[i] = bandwidth(congestion, both, chunk)) == 0)
            return;
    snprintf(name, sizeof name, "%s, %s, %zu bytes a call", congestion,
             both ? "both ways, per direction" : "one way", chunk);
    limits_report(name, values, RUNS, "GB/s");
}

int limits_tcp(int argc, char **argv)
{
    static const char *const controls[] = {"bbr", "cubic", "reno"};
    double values[RUNS];

    (void)argc, (void)argv;
    for (int busy = 0; busy < 2; busy++) {
        for (int i = 0; i < RUNS; i++)
            values[i] = round_trip_us(busy, 1, 5000);
        limits_report(busy ? "round trip, polling" : "round trip, blocking", values, RUNS,
                      "us");
    }
    for (size_t c = 0; c < sizeof controls / sizeof controls[0]; c++)
        for (size_t chunk = 64 << 10; chunk <= (1 << 20); chunk *= 4)
            for (int both = 0; both < 2; both++)
                report_bandwidth(controls[c], both, chunk);
    return 0;
}
