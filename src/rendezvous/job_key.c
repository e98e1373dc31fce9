/*
 * job_key.c: the 32-byte key of a job: made once, read once, and kept where neither a
 * core dump, nor the swap, nor a forked child finds it.
 *
 * 1. A key that came through HOROVOD_KEY_FD or HOROVOD_KEY cannot be read twice; the
 *    process keeps it for later inits, in a page of its own, and wipes it at its end.
 *    Whoever has the key in hand (a Ray actor) puts it there without a variable.
 * 2. A variable that was used up is taken out of the environment.
 */
#include "base/clock.h"
#include "base/config.h"
#include "horovod/driver.h"
#include "rendezvous/rendezvous.h"
#include "wire/crypto.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096                       /* what mmap rounds up to at least */
#define HEX (2 * HVD_KEY_BYTES)
#define READ_US 5000000                 /* the launcher writes the key before it forks */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *kept;                   /* guarded by lock; NULL: no key yet */
static pid_t kept_by;                   /* a forked child has none: its page is wiped */

enum hvd_status hvd_key_generate(uint8_t key[HVD_KEY_BYTES], struct hvd_error *err)
{
    return crypto_random(key, HVD_KEY_BYTES, err);
}

/* ---- Keeping ---------------------------------------------------------------------- */

static enum hvd_status keep(const uint8_t key[HVD_KEY_BYTES], struct hvd_error *err)
{
    if (kept == NULL) {
        void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                          -1, 0);

        if (page == MAP_FAILED)
            return error_sys(err, -1, "no memory for the job key");
        /* A kernel or a limit that refuses one of these does not stop the job. */
        (void)mlock(page, PAGE);
        (void)madvise(page, PAGE, MADV_DONTDUMP);
        (void)madvise(page, PAGE, MADV_WIPEONFORK);
        kept = page;
    }
    memcpy(kept, key, HVD_KEY_BYTES);
    kept_by = getpid();
    return HVD_OK;
}

enum hvd_status hvd_key_set(const uint8_t key[HVD_KEY_BYTES], struct hvd_error *err)
{
    enum hvd_status status;

    pthread_mutex_lock(&lock);
    status = keep(key, err);
    pthread_mutex_unlock(&lock);
    return status;
}

__attribute__((destructor)) static void wipe(void)
{
    if (kept != NULL)
        explicit_bzero(kept, HVD_KEY_BYTES);
}

/* ---- Reading ---------------------------------------------------------------------- */

static bool wait_readable(int fd, uint64_t until_us)
{
    uint64_t now = clock_us();
    struct pollfd p = {.fd = fd, .events = POLLIN};

    if (now >= until_us)
        return false;
    return poll(&p, 1, (int)((until_us - now) / 1000 + 1)) > 0 || errno == EINTR;
}

/* Up to n bytes; returns how many there were before the end, -1: errno. */
static ssize_t read_all(int fd, uint8_t *bytes, size_t n)
{
    uint64_t until_us = clock_us() + READ_US;
    size_t got = 0;

    while (got < n && wait_readable(fd, until_us)) {
        ssize_t step = read(fd, bytes + got, n - got);

        if (step == 0)
            break;
        if (step < 0 && errno != EINTR && errno != EAGAIN)
            return -1;
        got += step > 0 ? (size_t)step : 0;
    }
    return (ssize_t)got;
}

static enum hvd_status read_fd(int fd, uint8_t key[HVD_KEY_BYTES], struct hvd_error *err)
{
    ssize_t got = read_all(fd, key, HVD_KEY_BYTES);
    int code = errno;

    if (!(got < 0 && code == EBADF))
        close(fd);
    errno = code;
    if (got < 0)
        return error_sys(err, -1, "HOROVOD_KEY_FD=%d: cannot read the job key", fd);
    if (got != HVD_KEY_BYTES)
        return error_set(err, HVD_INVALID, -1,
                         "HOROVOD_KEY_FD=%d gave %zd bytes of a job key of %d", fd, got,
                         HVD_KEY_BYTES);
    return HVD_OK;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static enum hvd_status parse_hex(const char *text, size_t n, const char *from,
                                 uint8_t key[HVD_KEY_BYTES], struct hvd_error *err)
{
    int bad = n != HEX;

    for (size_t i = 0; !bad && i < HVD_KEY_BYTES; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);

        bad = high < 0 || low < 0;
        key[i] = (uint8_t)((unsigned)high << 4 | (unsigned)low);
    }
    if (bad)
        return error_set(err, HVD_INVALID, -1,
                         "%s: a job key is %d hexadecimal digits, nothing else", from, HEX);
    return HVD_OK;
}

static enum hvd_status check_file(int fd, const char *path, struct hvd_error *err)
{
    struct stat info;

    if (fstat(fd, &info) != 0)
        return error_sys(err, -1, "HOROVOD_KEY_FILE=%s", path);
    if (!S_ISREG(info.st_mode))
        return error_set(err, HVD_INVALID, -1, "HOROVOD_KEY_FILE=%s is not a file", path);
    if (info.st_uid != geteuid() && info.st_uid != 0)
        return error_set(err, HVD_INVALID, -1,
                         "HOROVOD_KEY_FILE=%s belongs to another user (uid %u)", path,
                         (unsigned)info.st_uid);
    if ((info.st_mode & 077) != 0)
        return error_set(err, HVD_INVALID, -1,
                         "HOROVOD_KEY_FILE=%s is open to others (mode %03o); run chmod 600 "
                         "and take a new key if others can have read it", path,
                         (unsigned)info.st_mode & 0777);
    return HVD_OK;
}

static enum hvd_status read_file(const char *path, uint8_t key[HVD_KEY_BYTES],
                                 struct hvd_error *err)
{
    uint8_t text[HEX + 3];              /* a line end, and one byte to see more */
    enum hvd_status status;
    ssize_t n;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return error_sys(err, -1, "HOROVOD_KEY_FILE=%s%s", path,
                         errno == ELOOP ? " is a symbolic link" : "");
    status = check_file(fd, path, err);
    n = status == HVD_OK ? read_all(fd, text, sizeof text) : 0;
    close(fd);
    if (status != HVD_OK)
        return status;
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        n--;
    status = parse_hex((char *)text, n < 0 ? 0 : (size_t)n, "HOROVOD_KEY_FILE", key, err);
    explicit_bzero(text, sizeof text);
    return status;
}

/* From the sources the configuration names, the most private first. */
static enum hvd_status read_sources(const struct config *conf, uint8_t key[HVD_KEY_BYTES],
                                    bool *found_p, struct hvd_error *err)
{
    enum hvd_status status;

    *found_p = true;
    if (conf->key_fd >= 0) {
        status = read_fd((int)conf->key_fd, key, err);
        config_wipe_environment("HOROVOD_KEY_FD");
        return status;
    }
    if (conf->key_file[0] != '\0')
        return read_file(conf->key_file, key, err);
    if (conf->key_hex[0] != '\0') {
        status = parse_hex(conf->key_hex, strlen(conf->key_hex), "HOROVOD_KEY", key, err);
        config_wipe_environment("HOROVOD_KEY");
        return status;
    }
    *found_p = false;
    return HVD_OK;
}

enum hvd_status job_key_read(const struct config *conf, uint8_t key[HVD_KEY_BYTES],
                             bool *found_p, struct hvd_error *err)
{
    enum hvd_status status;

    pthread_mutex_lock(&lock);
    status = read_sources(conf, key, found_p, err);
    if (status == HVD_OK && *found_p) {
        status = keep(key, err);
    } else if (status == HVD_OK && kept != NULL && kept_by == getpid()) {
        memcpy(key, kept, HVD_KEY_BYTES);
        *found_p = true;
    }
    pthread_mutex_unlock(&lock);
    if (status != HVD_OK) {
        explicit_bzero(key, HVD_KEY_BYTES);
        *found_p = false;
    }
    return status;
}
