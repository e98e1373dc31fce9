/*
 * test_attack.c: strangers at the rendezvous server, and false servers for a worker.
 * A seed from the environment (ATTACK_SEED) repeats a run.
 */
#include "rdv_support.h"

#include "wire/bytes.h"
#include "wire/crypto.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define EACH 200                        /* times per way of attack */

static unsigned long long seed;

static uint32_t chance(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}

static void set_seed(void)
{
    const char *given = getenv("ATTACK_SEED");

    seed = given != NULL ? strtoull(given, NULL, 0) : clock_ns();
    printf("ATTACK_SEED=%llu\n", seed);
}

/* ---- Ways to get in --------------------------------------------------------------- */

struct attack {
    const char *name;
    bool (*run)(int fd);                /* true: refused, as it must be */
};

static struct {                         /* what a wire tapper has of an honest worker */
    uint8_t hello[HS_HELLO], confirm[HS_CONFIRM], entry[4096];
    size_t entry_n;
} tape;

static void make_hello(const uint8_t *key, struct hs_identity id, struct hs_dialer *d,
                       uint8_t hello[HS_HELLO])
{
    struct hvd_error err;

    CHECK_OK(hs_dial(d, key, &id, hello, &err), err);
}

static bool is_refused_hello(int fd, const uint8_t *key, struct hs_identity id)
{
    uint8_t hello[HS_HELLO];
    struct hs_dialer d;

    make_hello(key, id, &d, hello);
    raw_send(fd, hello, sizeof hello);
    return raw_is_dropped(fd);
}

static bool wrong_key(int fd)
{
    uint8_t key[HS_KEY];

    memcpy(key, test_key, HS_KEY);
    key[chance() % HS_KEY] ^= (uint8_t)(1 + chance() % 255);
    return is_refused_hello(fd, key, raw_identity(0, 0));
}

static bool wrong_job(int fd)
{
    struct hs_identity id = raw_identity(0, 0);

    strcpy(id.job_id, chance() % 2 ? "jobs" : "");
    return is_refused_hello(fd, test_key, id);
}

static bool wrong_purpose(int fd)
{
    struct hs_identity id = raw_identity(0, 0);

    id.purpose = HS_DATA + (int)(chance() % 4);
    return is_refused_hello(fd, test_key, id);
}

static bool wrong_rank(int fd)
{
    struct hs_identity id = raw_identity(0, 0);

    id.peer = 1 + (int)(chance() % 100);
    return is_refused_hello(fd, test_key, id);
}

static bool garbage(int fd)
{
    uint8_t bytes[1024];

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)chance();
    if (chance() % 2)
        memcpy(bytes, "HvdH\1\0", 6);
    raw_send(fd, bytes, HS_HELLO + chance() % (sizeof bytes - HS_HELLO));
    return raw_is_dropped(fd);
}

static bool other_protocol(int fd)
{
    static const char text[] = "GET /global/0 HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n"
                               "User-Agent: a browser that was led here by a web page; the "
                               "rest of this line is long enough to fill a whole hello, and "
                               "then some more, so that the server has something to look at "
                               "before it closes the connection without an answer\r\n\r\n";

    raw_send(fd, text, sizeof text - 1);
    return raw_is_dropped(fd);
}

static bool truncated(int fd)
{
    uint8_t hello[HS_HELLO];
    struct hs_dialer d;

    make_hello(test_key, raw_identity(0, 0), &d, hello);
    raw_send(fd, hello, 1 + chance() % (HS_HELLO - 1));
    shutdown(fd, SHUT_WR);
    return raw_is_dropped(fd);
}

static bool changed_hello(int fd)
{
    uint8_t hello[HS_HELLO];
    struct hs_dialer d;
    unsigned bit = chance() % (HS_HELLO * 8);

    make_hello(test_key, raw_identity(0, 0), &d, hello);
    hello[bit / 8] ^= (uint8_t)(1u << bit % 8);
    raw_send(fd, hello, sizeof hello);
    return raw_is_dropped(fd);
}

static bool changed_version(int fd)
{
    uint8_t hello[HS_HELLO];
    struct hs_dialer d;

    make_hello(test_key, raw_identity(0, 0), &d, hello);
    hello[4] ^= (uint8_t)(1 + chance() % 255);
    raw_send(fd, hello, sizeof hello);
    return raw_is_dropped(fd);
}

/* A good hello and reply, then a confirm that is not. */
static bool is_refused_confirm(int fd, void (*make)(uint8_t *confirm, const uint8_t *reply))
{
    uint8_t hello[HS_HELLO], reply[HS_REPLY], confirm[HS_CONFIRM];
    struct hs_dialer d;
    struct hs_keys keys;
    struct hvd_error err;

    make_hello(test_key, raw_identity(0, 0), &d, hello);
    raw_send(fd, hello, sizeof hello);
    if (!raw_receive(fd, reply, sizeof reply))
        return false;
    CHECK_OK(hs_dial_finish(&d, reply, confirm, &keys, &err), err);
    make(confirm, reply);
    raw_send(fd, confirm, sizeof confirm);
    return raw_is_dropped(fd);
}

static void flip(uint8_t *confirm, const uint8_t *reply)
{
    (void)reply;
    confirm[chance() % HS_CONFIRM] ^= (uint8_t)(1u << chance() % 8);
}

static void reflect(uint8_t *confirm, const uint8_t *reply)
{
    memcpy(confirm, reply + HS_REPLY - HS_CONFIRM, HS_CONFIRM);
    memcpy(confirm, "HvdC", 4);
}

static void use_tape(uint8_t *confirm, const uint8_t *reply)
{
    (void)reply;
    memcpy(confirm, tape.confirm, HS_CONFIRM);
}

static bool changed_confirm(int fd)
{
    return is_refused_confirm(fd, flip);
}

static bool reflected(int fd)
{
    return is_refused_confirm(fd, reflect);
}

static bool spliced(int fd)
{
    return is_refused_confirm(fd, use_tape);
}

static bool replayed(int fd)
{
    raw_send(fd, tape.hello, HS_HELLO);
    raw_send(fd, tape.confirm, HS_CONFIRM);
    raw_send(fd, tape.entry, tape.entry_n);
    return raw_is_dropped(fd);
}

static const struct attack attacks[] = {
    {"wrong key", wrong_key}, {"wrong job", wrong_job}, {"wrong purpose", wrong_purpose},
    {"wrong rank", wrong_rank}, {"garbage", garbage}, {"other protocol", other_protocol},
    {"truncated", truncated}, {"changed hello", changed_hello},
    {"changed version", changed_version}, {"changed confirm", changed_confirm},
    {"reflected", reflected}, {"spliced", spliced}, {"replayed", replayed},
};

/* ---- Honest worker between them --------------------------------------------------- */

/* Records a whole good conversation, up to the entry. */
static void record(uint16_t port)
{
    struct table_entry e = worker_entry(0, 1, 0);
    struct hs_identity id = raw_identity(0, 0);
    uint8_t reply[HS_REPLY], *body;
    struct hs_dialer d;
    struct hs_keys keys;
    struct hvd_error err;
    struct seal seal;
    int fd = raw_connect(port);
    size_t n;

    make_hello(test_key, id, &d, tape.hello);
    CHECK(raw_send(fd, tape.hello, HS_HELLO));
    CHECK(raw_receive(fd, reply, sizeof reply));
    CHECK_OK(hs_dial_finish(&d, reply, tape.confirm, &keys, &err), err);
    CHECK(raw_send(fd, tape.confirm, HS_CONFIRM));
    CHECK_OK(put_rdv_entry(&e, 1000, &body, &n, &err), err);
    CHECK_OK(seal_init(&seal, keys.send, &err), err);
    put_rdv_header(tape.entry, RDV_ENTRY, n);
    CHECK_OK(seal_encrypt(&seal, tape.entry, RDV_HEADER, body, n, tape.entry + RDV_HEADER,
                          tape.entry + RDV_HEADER + n, &err), err);
    tape.entry_n = RDV_HEADER + n + SEAL_TAG;
    CHECK(raw_send(fd, tape.entry, tape.entry_n));
    CHECK(raw_receive(fd, reply, 8));   /* its table begins to come */
    seal_release(&seal);
    free(body);
    close(fd);
}

static void check_honest(struct hvd_server *s)
{
    struct worker w = worker_of(hvd_server_port(s), 0, 1);

    CHECK_OK(worker_join(&w), w.err);
    worker_end(&w);
    await_status(s, "gone");
}

/* stderr of this process goes to a file until lines_of counts what matched. */
static int capture_stderr(void)
{
    int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    CHECK(fd >= 0);
    CHECK(dup2(fd, 2) == 2);
    return fd;
}

static int lines_of(int fd, const char *part)
{
    static char text[1 << 20];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    int count = 0;

    text[n > 0 ? n : 0] = '\0';
    for (const char *p = text; (p = strstr(p, part)) != NULL; p++)
        count++;
    return count;
}

TEST(no_attack_gets_in, .limit_s = 300)
{
    struct hvd_server *s = server_up(server_options(1));
    uint16_t port = hvd_server_port(s);
    uint64_t start = clock_us(), entries;
    int kinds = (int)(sizeof attacks / sizeof attacks[0]);
    int log;

    set_seed();
    record(port);
    await_status(s, "gone");
    entries = counters_of(s).entries;
    log = capture_stderr();
    for (int k = 0; k < kinds; k++) {
        for (int i = 0; i < EACH; i++) {
            int fd = raw_connect(port);

            if (!attacks[k].run(fd))
                check_fail(__FILE__, __LINE__, "%s, number %d was not refused",
                           attacks[k].name, i);
            close(fd);
        }
        check_honest(s);
    }
    /* Nothing of a stranger was decoded, and its log is one line a second at most. */
    CHECK_EQ(counters_of(s).entries, entries + (uint64_t)kinds);
    CHECK(counters_of(s).refused >= (uint64_t)kinds * EACH);
    CHECK(lines_of(log, " refused ") <= (int)((clock_us() - start) / 1000000) + 1);
    CHECK(lines_of(log, " refused ") >= 1);
    hvd_server_free(s);
    close(log);
}

/* ---- After the proof -------------------------------------------------------------- */

/* A worker that holds the key and does not keep to the protocol. */
static struct channel bad_worker(struct hvd_server *s, uint32_t generation)
{
    struct channel c;

    raw_prove(raw_connect(hvd_server_port(s)), 0, generation, &c);
    return c;
}

static void check_verdict(struct channel *c, const char *text)
{
    struct channel_message m;
    struct hvd_error verdict, err;

    CHECK_OK(channel_receive(c, &m, &err), err);
    CHECK_EQ(m.kind, RDV_VERDICT);
    CHECK_OK(get_rdv_verdict(&verdict, m.body, m.n, &err), err);
    CHECK_HAS(verdict.text, text);
    CHECK(raw_is_dropped(c->fd));
    channel_release(c);
}

static void send_entry_of(struct channel *c, struct table_entry e)
{
    struct hvd_error err;
    uint8_t *body;
    size_t n;

    CHECK_OK(put_rdv_entry(&e, 5000, &body, &n, &err), err);
    CHECK_OK(channel_send(c, RDV_ENTRY, body, n, &err), err);
    free(body);
}

TEST(a_key_holder_must_keep_to_the_protocol)
{
    struct hvd_server *s = server_up(server_options(1));
    uint8_t big[RDV_ENTRY_MAX + 1] = {0}, header[RDV_HEADER];
    struct hvd_error err;
    struct channel c;

    c = bad_worker(s, 0);               /* another rank than it has proved */
    send_entry_of(&c, worker_entry(1, 2, 0));
    check_verdict(&c, "sent the entry of rank 1");
    c = bad_worker(s, 0);               /* another generation than it has proved */
    send_entry_of(&c, worker_entry(0, 1, 1));
    check_verdict(&c, "of generation 1");
    c = bad_worker(s, 5);               /* a generation that is not on */
    send_entry_of(&c, worker_entry(0, 1, 5));
    check_verdict(&c, "belongs to generation 5, the job is in generation 0");
    c = bad_worker(s, 0);               /* not an entry */
    CHECK_OK(channel_send(&c, RDV_ENTRY, big, 100, &err), err);
    check_verdict(&c, "format 0");
    c = bad_worker(s, 0);               /* a message only servers send */
    CHECK_OK(channel_send(&c, RDV_TABLE, big, 100, &err), err);
    check_verdict(&c, "kind 2 before the entry");
    c = bad_worker(s, 0);               /* larger than any entry */
    CHECK_OK(channel_send(&c, RDV_ENTRY, big, sizeof big, &err), err);
    CHECK(raw_is_dropped(c.fd));
    channel_release(&c);
    c = bad_worker(s, 0);               /* 4 GB announced */
    memset(header, 0xff, sizeof header);
    CHECK(raw_send(c.fd, header, sizeof header));
    CHECK(raw_is_dropped(c.fd));
    channel_release(&c);
    c = bad_worker(s, 0);               /* not sealed */
    put_rdv_header(header, RDV_ENTRY, 8);
    CHECK(raw_send(c.fd, header, sizeof header) && raw_send(c.fd, big, 24));
    CHECK(raw_is_dropped(c.fd));
    channel_release(&c);
    check_honest(s);
    hvd_server_free(s);
}

TEST(a_second_message_ends_the_connection)
{
    struct hvd_server *s = server_up(server_options(2));
    struct channel c = bad_worker(s, 0);

    send_entry_of(&c, worker_entry(0, 2, 0));
    await_status(s, "waiting");
    send_entry_of(&c, worker_entry(0, 2, 0));
    CHECK(raw_is_dropped(c.fd));
    channel_release(&c);
    await_gone(s, "waiting");
    hvd_server_free(s);
}

/* ---- Strangers that cost ---------------------------------------------------------- */

static double dropped_after_s(int fd, uint64_t start_us)
{
    CHECK(raw_is_dropped(fd));
    close(fd);
    return (double)(clock_us() - start_us) / 1e6;
}

TEST(silent_and_slow_peers_are_dropped_in_time, .limit_s = 40)
{
    struct hvd_server *s = server_up(server_options(1));
    uint16_t port = hvd_server_port(s);
    uint64_t start = clock_us();
    int silent = raw_connect(port), slow = raw_connect(port);
    struct channel proved;
    uint8_t byte = 'H';
    double after;

    raw_prove(raw_connect(port), 0, 0, &proved);        /* and then nothing more */
    check_honest(s);
    for (int i = 0; i < 10; i++) {
        raw_send(slow, &byte, 1);       /* a byte now and then buys no time */
        poll(NULL, 0, 300);
    }
    /* After 5 s; a byte that bought time would buy 5 s more: the last is sent at 2.7 s. */
    after = dropped_after_s(slow, start);
    CHECK(after > 4.5 && after < 7.6);
    after = dropped_after_s(silent, start);
    CHECK(after > 4.5);
    CHECK(raw_is_dropped(proved.fd));
    channel_release(&proved);
    CHECK_EQ(counters_of(s).refused, 3u);
    hvd_server_free(s);
}

static int count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static long rss_kb(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long size, pages;

    CHECK(f != NULL && fscanf(f, "%ld %ld", &size, &pages) == 2);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Opens `count` connections, says so, and keeps opening more until it is killed. */
static pid_t start_flood(uint16_t port, int count)
{
    int ready[2];
    char byte;
    pid_t pid;

    CHECK_EQ(pipe(ready), 0);
    pid = fork();
    if (pid == 0) {
        static int fds[4096];
        struct rlimit files = {4096, 4096};

        setrlimit(RLIMIT_NOFILE, &files);
        for (int i = 0;; i = (i + 1) % count) {
            if (fds[i] > 0)
                close(fds[i]);
            fds[i] = raw_connect(port);
            if (i == count - 1 && write(ready[1], "x", 1) != 1)
                _exit(1);
        }
    }
    close(ready[1]);
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

TEST(a_flood_of_strangers_keeps_nobody_out, .limit_s = 60)
{
    struct hvd_server *s = server_up(server_options(1));
    int fds = count_fds(), log;
    uint64_t start = clock_us();
    long kb;
    pid_t flood;

    check_honest(s);
    log = capture_stderr();
    kb = rss_kb();
    flood = start_flood(hvd_server_port(s), 2000);
    for (int i = 0; i < 5; i++)
        check_honest(s);
    CHECK(count_fds() <= fds + SERVER_UNPROVED + 4);
    CHECK(CHECK_SANITIZED || rss_kb() - kb <= 2048);
    CHECK(counters_of(s).pushed_out >= 2000 - SERVER_UNPROVED - 64);
    kill(flood, SIGKILL);
    waitpid(flood, NULL, 0);
    CHECK(lines_of(log, " refused ") <= (int)((clock_us() - start) / 1000000) + 1);
    check_honest(s);
    printf("%llu strangers, RSS %+ld kB\n",
           (unsigned long long)counters_of(s).accepted, rss_kb() - kb);
    close(log);
    hvd_server_free(s);
}

/* A wire tapper's recorded HELLO fits once: again it is refused without an answer. */
TEST(a_replayed_hello_gets_no_answer)
{
    enum { MANY = SERVER_UNPROVED + 100 };
    struct hvd_server *s = server_up(server_options(1));
    static int fds[MANY];

    record(hvd_server_port(s));
    await_status(s, "gone");
    for (int i = 0; i < MANY; i++) {
        fds[i] = raw_connect(hvd_server_port(s));
        CHECK(raw_send(fds[i], tape.hello, HS_HELLO));
    }
    for (int i = 0; i < MANY; i++)
        CHECK(raw_is_dropped(fds[i]));
    CHECK_EQ(counters_of(s).refused, MANY);
    check_honest(s);
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
    hvd_server_free(s);
}

/* Sends the recorded HELLO as fast as it can, on connections it keeps, until killed. */
static pid_t start_replays(uint16_t port)
{
    pid_t pid = fork();

    if (pid == 0) {
        static int fds[512];

        for (int i = 0;; i = (i + 1) % 512) {
            if (fds[i] > 0)
                close(fds[i]);
            fds[i] = raw_connect(port);
            raw_send(fds[i], tape.hello, HS_HELLO);
        }
    }
    return pid;
}

TEST(replayed_hellos_delay_nobody, .limit_s = 60)
{
    struct hvd_server *s = server_up(server_options(1));
    uint64_t worst_us = 0, before;
    pid_t pid;
    int log;

    record(hvd_server_port(s));
    await_status(s, "gone");
    log = capture_stderr();
    pid = start_replays(hvd_server_port(s));
    before = counters_of(s).refused;
    while (counters_of(s).refused < before + 1000)
        poll(NULL, 0, 1);
    for (int i = 0; i < 10; i++) {
        struct worker w = worker_of(hvd_server_port(s), 0, 1);

        CHECK_OK(worker_join(&w), w.err);
        worst_us = w.took_us > worst_us ? w.took_us : worst_us;
        worker_end(&w);
        await_status(s, "gone");
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(log);
    printf("%llu replays, a worker joins in %.1f ms at most\n",
           (unsigned long long)(counters_of(s).refused - before), (double)worst_us / 1e3);
    CHECK(worst_us < 2000000);          /* a few ms; sanitized, on a busy machine: more */
    hvd_server_free(s);
}

/* ---- False servers ---------------------------------------------------------------- */

struct false_server {
    int listener;
    uint16_t port;
    pthread_t thread;
    void (*answer)(int fd, const uint8_t *hello);
};

static void *false_run(void *context)
{
    struct false_server *f = context;
    uint8_t hello[HS_HELLO];
    int fd;

    while ((fd = accept(f->listener, NULL, NULL)) >= 0) {
        if (raw_receive(fd, hello, sizeof hello))
            f->answer(fd, hello);
        close(fd);
    }
    return NULL;
}

static void false_start_at(struct false_server *f, const char *address, uint16_t port,
                           void (*answer)(int, const uint8_t *))
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    socklen_t n = sizeof a;
    const int on = 1;

    CHECK_EQ(inet_pton(AF_INET, address, &a.sin_addr), 1);
    f->answer = answer;
    f->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(f->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    CHECK_EQ(bind(f->listener, (struct sockaddr *)&a, n), 0);
    CHECK_EQ(listen(f->listener, 16), 0);
    CHECK_EQ(getsockname(f->listener, (struct sockaddr *)&a, &n), 0);
    f->port = ntohs(a.sin_port);
    CHECK_EQ(pthread_create(&f->thread, NULL, false_run, f), 0);
}

static void false_start(struct false_server *f, void (*answer)(int, const uint8_t *))
{
    false_start_at(f, "127.0.0.1", 0, answer);
}

static void false_stop(struct false_server *f)
{
    shutdown(f->listener, SHUT_RDWR);
    pthread_join(f->thread, NULL);
    close(f->listener);
}

/* Without the true server the worker waits for it, and then says what it has met. */
static void check_false(void (*answer)(int, const uint8_t *), const char *text)
{
    struct false_server f;
    struct worker w;

    false_start(&f, answer);
    w = worker_of(f.port, 0, 1);
    w.opt.deadline_us = clock_us() + 500000;
    CHECK_EQ(worker_join(&w), HVD_AUTH);
    CHECK(w.took_us >= 500000);
    CHECK_HAS(w.err.text, text);
    CHECK_HAS(w.err.text, "127.0.0.1 port");
    false_stop(&f);
}

static void answer_nothing(int fd, const uint8_t *hello)
{
    (void)fd;
    (void)hello;
}

static void answer_reflection(int fd, const uint8_t *hello)
{
    raw_send(fd, hello, HS_HELLO);
}

static void answer_without_key(int fd, const uint8_t *hello)
{
    uint8_t reply[HS_REPLY];

    memcpy(reply, hello, HS_REPLY);
    memcpy(reply, "HvdR", 4);
    raw_send(fd, reply, sizeof reply);
}

/* An honest server of another version. */
static void answer_version(int fd, const uint8_t *hello)
{
    static const char salt[] = "horovod handshake";
    uint8_t reply[HS_REPLY] = "HvdR", text[HS_HELLO + 224], k[HS_KEY];
    struct hvd_error err;

    bytes_put_u16(reply + 4, 9);
    bytes_put_u16(reply + 6, 1);
    strcpy((char *)reply + 88, "9.9.9");
    CHECK_OK(crypto_derive((struct crypto_span){test_key, HS_KEY},
                           (struct crypto_span){salt, sizeof salt - 1},
                           (struct crypto_span){"refusal", 7}, k, sizeof k, &err), err);
    memcpy(text, hello, HS_HELLO);
    memcpy(text + HS_HELLO, reply, 224);
    CHECK_OK(crypto_mac(k, text, sizeof text, reply + 224, &err), err);
    raw_send(fd, reply, sizeof reply);
}

/* A stranger that says it were one. */
static void answer_false_version(int fd, const uint8_t *hello)
{
    uint8_t reply[HS_REPLY] = "HvdR";

    (void)hello;
    bytes_put_u16(reply + 4, 9);
    raw_send(fd, reply, sizeof reply);
}

TEST(a_false_server_is_recognised)
{
    check_false(answer_nothing, "job key, job id or generation differ");
    check_false(answer_reflection, "did not prove");
    check_false(answer_without_key, "did not prove");
    check_false(answer_false_version, "protocol 9");
}

TEST(a_proved_version_is_told_at_once)
{
    struct false_server f;
    struct worker w;

    false_start(&f, answer_version);
    w = worker_of(f.port, 0, 1);
    CHECK_EQ(worker_join(&w), HVD_VERSION);
    CHECK_HAS(w.err.text, "protocol 9 (horovod 9.9.9)");
    CHECK(w.took_us < 10000000);        /* its own deadline is at 15 s */
    false_stop(&f);
}

/* At another address of the server, and in its place before it comes. */
static void check_stranger_decides_nothing(void (*answer)(int, const uint8_t *))
{
    struct hvd_server *s = server_up_at_home(server_options(1));
    struct hvd_server_options opt = server_options(1);
    struct false_server f;
    struct worker w;

    opt.port = hvd_server_port(s);
    false_start_at(&f, "127.0.0.2", opt.port, answer);
    w = worker_of(opt.port, 0, 1);
    w.opt.addrs = "127.0.0.2,127.0.0.1";
    CHECK_OK(worker_join(&w), w.err);
    worker_end(&w);
    false_stop(&f);
    hvd_server_free(s);

    false_start_at(&f, "127.0.0.1", opt.port, answer);
    w = worker_of(opt.port, 0, 1);
    worker_start(&w);
    poll(NULL, 0, 700);                 /* it meets the stranger several times */
    false_stop(&f);
    s = server_up(opt);
    worker_wait(&w);
    CHECK_OK(w.status, w.err);
    worker_end(&w);
    hvd_server_free(s);
}

TEST(a_stranger_in_place_of_the_server_decides_nothing)
{
    check_stranger_decides_nothing(answer_false_version);
    check_stranger_decides_nothing(answer_without_key);
    check_stranger_decides_nothing(answer_nothing);
}

/* It holds the key, but does not do what a server does. */
static const uint8_t *bad_body;
static size_t bad_n;
static enum rdv_kind bad_kind;

static void answer_badly(int fd, const uint8_t *hello)
{
    struct hs_identity self = {HS_RENDEZVOUS, HS_ANY_RANK, HS_ANY_RANK, HS_ANY_GENERATION,
                               "job"};
    uint8_t reply[HS_REPLY], confirm[HS_CONFIRM];
    struct channel_message m;
    struct hs_listener l;
    struct hs_keys keys;
    struct hvd_error err;
    struct channel c;

    CHECK_OK(hs_accept(&l, test_key, &self, hello, reply, &err), err);
    CHECK(raw_send(fd, reply, sizeof reply));
    CHECK(raw_receive(fd, confirm, sizeof confirm));
    CHECK_OK(hs_accept_finish(&l, confirm, &keys, &err), err);
    CHECK_OK(channel_init(&c, dup(fd), &keys, RDV_BODY_MAX, &err), err);
    CHECK_OK(channel_receive(&c, &m, &err), err);
    if (bad_n > 0)
        CHECK_OK(channel_send(&c, bad_kind, bad_body, bad_n, &err), err);
    (void)channel_receive(&c, &m, &err);        /* until the worker leaves */
    channel_release(&c);
}

/* A server that does not answer (n is 0) is waited for as long as there is time. */
static void check_bad_server(enum rdv_kind kind, const uint8_t *body, size_t n,
                             enum hvd_status status, const char *text)
{
    struct false_server f;
    struct worker w;

    bad_kind = kind, bad_body = body, bad_n = n;
    false_start(&f, answer_badly);
    w = worker_of(f.port, 0, 1);
    if (n == 0)
        w.opt.deadline_us = clock_us() + 2000000;
    CHECK_EQ(worker_join(&w), status);
    CHECK_HAS(w.err.text, text);
    false_stop(&f);
}

TEST(a_server_that_holds_the_key_must_keep_to_the_protocol)
{
    struct table_entry e = worker_entry(0, 1, 0);
    struct table t = {0, 1, &e};
    struct hvd_error err;
    uint8_t *bytes;
    size_t n;

    e.pid = 1;                          /* not what the worker has sent */
    CHECK_OK(put_table(&t, &bytes, &n, &err), err);
    check_bad_server(RDV_TABLE, bytes, n, HVD_PROTO, "does not hold what rank 0 has sent");
    check_bad_server(RDV_TABLE, bytes, n - 1, HVD_PROTO, "table");
    check_bad_server(RDV_ENTRY, bytes, n, HVD_PROTO, "sent kind 1");
    check_bad_server(RDV_VERDICT, bytes, 4, HVD_PROTO, "verdict: 4 bytes");
    check_bad_server(RDV_TABLE, bytes, 0, HVD_TIMEOUT, "did not answer in time");
    free(bytes);
}

static void answer_late(int fd, const uint8_t *hello)
{
    (void)hello;
    (void)raw_is_dropped(fd);
}

TEST(who_accepts_and_says_nothing_is_named)
{
    struct false_server f;
    struct worker w;

    false_start(&f, answer_late);
    w = worker_of(f.port, 0, 1);
    w.opt.deadline_us = clock_us() + 300000;
    CHECK_EQ(worker_join(&w), HVD_TIMEOUT);
    CHECK_HAS(w.err.text, "127.0.0.1 port");
    CHECK_HAS(w.err.text, "does not answer");
    false_stop(&f);
}

TEST(a_worker_with_the_wrong_key_is_told_so)
{
    struct hvd_server *s = server_up(server_options(1));
    struct worker w = worker_of(hvd_server_port(s), 0, 1);
    uint8_t key[HVD_KEY_BYTES] = {7};

    int log = capture_stderr();

    w.opt.key = key;
    w.opt.deadline_us = clock_us() + 1000000;
    CHECK_EQ(worker_join(&w), HVD_AUTH);
    CHECK_HAS(w.err.text, "127.0.0.1 port");
    CHECK_EQ(lines_of(log, "trying again until the time limit"), 1);
    w = worker_of(hvd_server_port(s), 0, 1);
    w.opt.job_id = "another";
    w.opt.deadline_us = clock_us() + 500000;
    CHECK_EQ(worker_join(&w), HVD_AUTH);
    close(log);
    hvd_server_free(s);
}
