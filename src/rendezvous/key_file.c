/*
 * key_file.c: see key_file.h.  What others can read, or can have put there, is refused;
 * texts are wiped where they were read.
 */
#include "rendezvous/key_file.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY_BYTES (KEY_HEX / 2)
#define READ_US 5000000                 /* of a file on a slow disk */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

enum hvd_status key_parse(const char *text, size_t n, const char *from, uint8_t key[32],
                          struct hvd_error *err)
{
    int bad = n != KEY_HEX;

    for (size_t i = 0; !bad && i < KEY_BYTES; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);

        bad = high < 0 || low < 0;
        key[i] = (uint8_t)((unsigned)high << 4 | (unsigned)low);
    }
    if (bad)
        return error_set(err, HVD_INVALID, -1,
                         "%s: a job key is %d hexadecimal digits, nothing else", from,
                         KEY_HEX);
    return HVD_OK;
}

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

static enum hvd_status check_file(int fd, const char *shown, struct hvd_error *err)
{
    struct stat info;

    if (fstat(fd, &info) != 0)
        return error_sys(err, -1, "%s", shown);
    if (!S_ISREG(info.st_mode))
        return error_set(err, HVD_INVALID, -1, "%s is not a file", shown);
    if (info.st_uid != geteuid() && info.st_uid != 0)
        return error_set(err, HVD_INVALID, -1, "%s belongs to another user (uid %u)", shown,
                         (unsigned)info.st_uid);
    if ((info.st_mode & 077) != 0)
        return error_set(err, HVD_INVALID, -1,
                         "%s is open to others (mode %03o); run chmod 600 and take a new "
                         "key if others can have read it", shown,
                         (unsigned)info.st_mode & 0777);
    return HVD_OK;
}

enum hvd_status key_file_read(int dir, const char *name, const char *shown,
                              uint8_t key[32], struct hvd_error *err)
{
    uint8_t text[KEY_HEX + 3];          /* a line end, and one byte to see more */
    enum hvd_status status;
    ssize_t n;
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0) {
        int why = errno;

        error_sys(err, -1, "%s%s", shown, why == ELOOP ? " is a symbolic link" : "");
        errno = why;
        return HVD_SYS;
    }
    status = check_file(fd, shown, err);
    n = status == HVD_OK ? read_all(fd, text, sizeof text) : 0;
    close(fd);
    if (status != HVD_OK)
        return status;
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        n--;
    status = key_parse((char *)text, n < 0 ? 0 : (size_t)n, shown, key, err);
    explicit_bzero(text, sizeof text);
    return status;
}
