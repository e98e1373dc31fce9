/*
 * delaylink.c: simulated hosts with latency, bandwidth and loss, for kernels without netem.
 *
 *   delaylink HOSTS DELAY_US RATE_MBIT LOSS_PPM [MTU]
 *   ip netns exec dl1 program ...
 *
 * Makes network namespaces dl1..dlN, in each a TUN device tun0 with the address 10.78.0.i,
 * and carries packets between them: a packet leaves its sender at RATE_MBIT (0: no
 * limit), arrives DELAY_US later and is lost with probability LOSS_PPM / 1e6.  Runs until
 * SIGINT or SIGTERM, then removes the namespaces.  Needs root, iproute2 and /dev/net/tun.
 *
 * One queue per sender: the delay is constant, so packets stay in order.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define HOSTS_MAX 16
#define QUEUE (1u << 14)                /* packets under way per sender */
#define PACKET_MAX 65536
#define BACKLOG_NS 50000000u            /* a sender's queue is dropped beyond 50 ms */
#define SPIN_NS 60000u                  /* the last part of a wait is spun */

struct packet {
    uint64_t due_ns;
    int to, length;
    char *bytes;
};

struct host {
    int fd;
    uint64_t free_ns;                   /* when its line has sent everything so far */
    struct packet queue[QUEUE];
    unsigned head, tail;
};

static struct {
    int hosts;
    uint64_t delay_ns, rate_mbit;
    long loss_ppm;
    int mtu;
} opt;

static struct host hosts[HOSTS_MAX];
static uint64_t carried, dropped;
static unsigned seed = 12345;
static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
    (void)number;
    stopped = 1;
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* ---- Namespaces --------------------------------------------------------------------- */

static bool shell(const char *format, int host, int value)
{
    char command[160];

    snprintf(command, sizeof command, format, host, value);
    if (system(command) == 0)
        return true;
    fprintf(stderr, "delaylink: failed: %s\n", command);
    return false;
}

/* The descriptor stays usable after we are back in our own namespace. */
static int open_tun(int host, int home)
{
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    char path[64];
    int fd, namespace;

    snprintf(path, sizeof path, "/run/netns/dl%d", host);
    namespace = open(path, O_RDONLY | O_CLOEXEC);
    if (namespace < 0 || setns(namespace, CLONE_NEWNET) != 0)
        die(path);
    close(namespace);
    fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    memcpy(request.ifr_name, "tun0", 5);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request) != 0)
        die("/dev/net/tun");
    if (setns(home, CLONE_NEWNET) != 0)
        die("setns");
    return fd;
}

static void remove_hosts(void)
{
    for (int i = 0; i < opt.hosts; i++) {
        close(hosts[i].fd);
        shell("ip netns del dl%d", i + 1, 0);
    }
}

static void make_hosts(void)
{
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);

    if (home < 0)
        die("/proc/self/ns/net");
    for (int i = 0; i < opt.hosts; i++) {
        if (!shell("ip netns add dl%d", i + 1, 0))
            exit(1);
        hosts[i].fd = open_tun(i + 1, home);
        shell("ip -n dl%d addr add 10.78.0.%d/24 dev tun0", i + 1, i + 1);
        shell("ip -n dl%d link set lo up", i + 1, 0);
        shell("ip -n dl%d link set tun0 mtu %d txqueuelen 2000 up", i + 1, opt.mtu);
    }
    close(home);
}

/* ---- Packets ------------------------------------------------------------------------ */

/* The host an IPv4 packet goes to, or -1. */
static int addressee(const char *packet, int length)
{
    int to;

    if (length < 20 || (packet[0] >> 4) != 4 || memcmp(packet + 16, "\x0a\x4e\x00", 3) != 0)
        return -1;
    to = (uint8_t)packet[19] - 1;
    return to >= 0 && to < opt.hosts ? to : -1;
}

static void enqueue(struct host *h, const char *bytes, int length, uint64_t now)
{
    int to = addressee(bytes, length);
    uint64_t start = h->free_ns > now ? h->free_ns : now;
    uint64_t end = start;
    struct packet *p;

    if (to < 0)
        return;
    if (opt.rate_mbit > 0)
        end += (uint64_t)length * 8000 / opt.rate_mbit;
    if ((opt.loss_ppm > 0 && rand_r(&seed) % 1000000 < opt.loss_ppm) ||
        end > now + BACKLOG_NS) {
        dropped++;
        return;
    }
    h->free_ns = end;
    p = &h->queue[h->tail++ % QUEUE];
    *p = (struct packet){end + opt.delay_ns, to, length, malloc((size_t)length)};
    if (p->bytes == NULL)
        die("malloc");
    memcpy(p->bytes, bytes, (size_t)length);
}

static bool take_in(struct host *h, uint64_t now)
{
    static char bytes[PACKET_MAX];
    bool any = false;

    for (int k = 0; k < 32 && h->tail - h->head < QUEUE - 1; k++) {
        ssize_t length = read(h->fd, bytes, sizeof bytes);

        if (length <= 0)
            break;
        any = true;
        enqueue(h, bytes, (int)length, now);
    }
    return any;
}

/* Hands over what is due; *next_p: when the next one is, if that is sooner. */
static bool hand_over(struct host *h, uint64_t now, uint64_t *next_p)
{
    bool any = false;

    while (h->head != h->tail) {
        struct packet *p = &h->queue[h->head % QUEUE];

        if (p->due_ns > now) {
            *next_p = p->due_ns < *next_p ? p->due_ns : *next_p;
            break;
        }
        if (write(hosts[p->to].fd, p->bytes, (size_t)p->length) < 0 && errno == EAGAIN)
            break;
        free(p->bytes);
        h->head++;
        carried++;
        any = true;
    }
    return any;
}

static void sleep_until(uint64_t next)
{
    struct pollfd fds[HOSTS_MAX];
    uint64_t now = now_ns(), wait = next > now ? next - now : 0;
    struct timespec timeout = {0, wait > SPIN_NS ? (long)(wait - SPIN_NS) : 0};

    for (int i = 0; i < opt.hosts; i++)
        fds[i] = (struct pollfd){hosts[i].fd, POLLIN, 0};
    ppoll(fds, (nfds_t)opt.hosts, &timeout, NULL);
}

static void carry(void)
{
    while (!stopped) {
        uint64_t now = now_ns(), next = now + 2000000;
        bool any = false;

        for (int i = 0; i < opt.hosts; i++) {
            any |= take_in(&hosts[i], now);
            any |= hand_over(&hosts[i], now, &next);
        }
        if (!any)
            sleep_until(next);
    }
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: delaylink HOSTS DELAY_US RATE_MBIT LOSS_PPM [MTU]\n");
        return 2;
    }
    opt.hosts = atoi(argv[1]);
    opt.delay_ns = strtoull(argv[2], NULL, 10) * 1000;
    opt.rate_mbit = strtoull(argv[3], NULL, 10);
    opt.loss_ppm = atol(argv[4]);
    opt.mtu = argc > 5 ? atoi(argv[5]) : 9000;
    if (opt.hosts < 2 || opt.hosts > HOSTS_MAX)
        return 2;
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    make_hosts();
    fprintf(stderr, "delaylink: 10.78.0.1 to 10.78.0.%d are up\n", opt.hosts);
    carry();
    remove_hosts();
    fprintf(stderr, "delaylink: %llu packets carried, %llu dropped\n",
            (unsigned long long)carried, (unsigned long long)dropped);
    return 0;
}
