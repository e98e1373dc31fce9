/*
 * job_key.c: the 32-byte key of a job: made once, read once, and kept where neither a
 * core dump, nor the swap, nor a forked child finds it (base/secret.h).
 *
 * 1. A key that came through HOROVOD_KEY_FD or HOROVOD_KEY cannot be read twice; the
 *    process keeps it for later inits and wipes it at its end.  Whoever has the key in
 *    hand (a Ray actor) puts it there without a variable.
 * 2. A variable that was used up is taken out of the environment.
 * 3. Every source is read into the caller's memory, without a copy in between that would
 *    have to be wiped; texts are wiped where they were read.
 */
#include "base/config.h"
#include "base/secret.h"
#include "horovod/driver.h"
#include "rendezvous/key_descriptor.h"
#include "rendezvous/key_file.h"
#include "rendezvous/rendezvous.h"
#include "wire/crypto.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *kept;                   /* guarded by lock; NULL: no key yet */
static pid_t kept_by;                   /* a forked child has none: its page is wiped */

enum hvd_status hvd_key_generate(uint8_t key[HVD_KEY_BYTES], struct hvd_error *err)
{
    return crypto_random(key, HVD_KEY_BYTES, err);
}

/* ---- Keeping ---------------------------------------------------------------------- */

static bool is_kept(void)
{
    return kept != NULL && kept_by == getpid();
}

static enum hvd_status keep(const uint8_t key[HVD_KEY_BYTES], struct hvd_error *err)
{
    if (kept == NULL)
        kept = secret_new(HVD_KEY_BYTES);
    if (kept == NULL)
        return error_sys(err, -1, "no memory for the job key");
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

static enum hvd_status not_a_key(int fd, struct hvd_error *err)
{
    char path[64], what[128] = "not open";
    ssize_t n;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    n = readlink(path, what, sizeof what - 1);
    if (n > 0)
        what[n] = '\0';
    return error_set(err, HVD_INVALID, -1,
                     "HOROVOD_KEY_FD=%d: that descriptor is not the job key which the "
                     "launcher has made (it is %s); something between the launcher and "
                     "this process has closed it, as Python's subprocess does without "
                     "pass_fds", fd, what);
}

/* From the launcher; the socket is for those who have lost the descriptor. */
static enum hvd_status read_handed(const struct config *conf, uint8_t key[HVD_KEY_BYTES],
                                   bool *found_p, struct hvd_error *err)
{
    int fd = (int)conf->key_fd;

    /* What this process starts is no rank of the job, and shall not become one. */
    config_wipe_environment("HOROVOD_KEY_FD");
    config_wipe_environment("HOROVOD_KEY_SOCKET");
    if (fd >= 0 && key_take_descriptor(fd, key))
        return HVD_OK;
    if (conf->key_socket[0] != '\0' && !is_kept())
        return key_ask_socket(conf->key_socket, key, err);
    if (fd >= 0)
        return not_a_key(fd, err);
    *found_p = false;
    return HVD_OK;
}

static enum hvd_status read_file(const char *path, uint8_t key[HVD_KEY_BYTES],
                                 struct hvd_error *err)
{
    char shown[4096 + 32];

    snprintf(shown, sizeof shown, "HOROVOD_KEY_FILE=%s", path);
    return key_file_read(AT_FDCWD, path, shown, key, err);
}

/* From the sources the configuration names, the most private first. */
static enum hvd_status read_sources(const struct config *conf, uint8_t key[HVD_KEY_BYTES],
                                    bool *found_p, struct hvd_error *err)
{
    enum hvd_status status;

    *found_p = true;
    if (conf->key_fd >= 0 || conf->key_socket[0] != '\0') {
        status = read_handed(conf, key, found_p, err);
        if (status != HVD_OK || *found_p)
            return status;
    }
    *found_p = true;
    if (conf->key_file[0] != '\0')
        return read_file(conf->key_file, key, err);
    if (conf->key_hex[0] != '\0') {
        status = key_parse(conf->key_hex, strlen(conf->key_hex), "HOROVOD_KEY", key, err);
        explicit_bzero(conf->key_hex, strlen(conf->key_hex));
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
    } else if (status == HVD_OK && is_kept()) {
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
