/*
 * user_key.c: the user's own key, ~/.horovod/key, from which jobs get theirs when a foreign
 * launcher (torchrun, mpirun, srun) has started the ranks and handed over none.
 *
 * 1. Whoever comes first makes it: 64 digits in a file of its own (0600, in a directory of
 *    0700), complete and on disk before link() gives it its name.  link() never replaces,
 *    also over NFS, so that all ranks of all hosts read the same key, whoever won.
 * 2. It is made only in a home that belongs to this user, and used only if others can
 *    neither read the file nor write into its directory.
 * 3. A job's key is HKDF(user's key, the job's name): one job's ranks cannot enter
 *    another's by mistake, and the user's key itself is never used on a connection.
 * 4. Where there is no home to write to, ranks of one host use TMPDIR/horovod-UID, under
 *    rule 2: who sits in its place can only make the job fail.
 */
#include "base/config.h"
#include "base/secret.h"
#include "horovod/driver.h"
#include "rendezvous/key_file.h"
#include "wire/crypto.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME "key"
#define TRIES 5                         /* a name that a network disk shows late */
#define MAKE "(umask 077; python3 -c 'import secrets; print(secrets.token_hex(32))' > %s)"

struct place {
    char home[PATH_MAX / 2];            /* the directory above it */
    char path[PATH_MAX];                /* of the directory that holds the key */
    bool is_home;
};

/* ---- Where ------------------------------------------------------------------------ */

/* HOME, else what the system says of this user: `env -i` takes HOME away. */
static bool find_home(char *home, size_t capacity)
{
    const char *given = config_foreign("HOME");
    struct passwd entry, *found = NULL;
    char buffer[4096];

    if (given == NULL || given[0] != '/') {
        given = NULL;
        if (getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &found) == 0 && found)
            given = entry.pw_dir;
    }
    return given != NULL && given[0] == '/' &&
           (size_t)snprintf(home, capacity, "%s", given) < capacity;
}

static bool find_place(struct place *at, bool is_home)
{
    at->is_home = is_home;
    if (!is_home) {
        const char *given = config_foreign("TMPDIR");

        snprintf(at->home, sizeof at->home, "%s",
                 given != NULL && given[0] == '/' ? given : "/tmp");
        snprintf(at->path, sizeof at->path, "%s/horovod-%u", at->home, (unsigned)geteuid());
        return true;
    }
    if (!find_home(at->home, sizeof at->home))
        return false;
    snprintf(at->path, sizeof at->path, "%s/.horovod", at->home);
    return true;
}

/* Rule 2: root with another's HOME (sudo) would leave files there that the other cannot
 * read. */
static enum hvd_status check_home(const struct place *at, struct hvd_error *err)
{
    struct stat info;

    if (!at->is_home)
        return HVD_OK;
    if (stat(at->home, &info) != 0)
        return error_sys(err, -1, "the home directory %s", at->home);
    if (info.st_uid != geteuid())
        return error_set(err, HVD_INVALID, -1,
                         "the home directory %s belongs to another user (uid %u)", at->home,
                         (unsigned)info.st_uid);
    return HVD_OK;
}

static enum hvd_status check_directory(int dir, const struct place *at,
                                       struct hvd_error *err)
{
    struct stat info;

    if (fstat(dir, &info) != 0)
        return error_sys(err, -1, "%s", at->path);
    if (info.st_uid != geteuid())
        return error_set(err, HVD_INVALID, -1, "%s belongs to another user (uid %u)",
                         at->path, (unsigned)info.st_uid);
    if ((info.st_mode & 022) != 0)
        return error_set(err, HVD_INVALID, -1,
                         "others can write into %s (mode %03o): run chmod 700 %s, and rm "
                         "%s/" NAME " if it is not yours", at->path,
                         (unsigned)info.st_mode & 0777, at->path, at->path);
    return HVD_OK;
}

static enum hvd_status open_directory(const struct place *at, int *dir_p,
                                      struct hvd_error *err)
{
    enum hvd_status status;
    /* A home may keep it elsewhere by a link; in /tmp anybody can put one. */
    int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | (at->is_home ? 0 : O_NOFOLLOW);
    int dir = open(at->path, flags);

    if (dir < 0 && errno == ENOENT) {
        TRY(check_home(at, err));
        if (mkdir(at->path, 0700) != 0 && errno != EEXIST)
            return error_sys(err, -1, "%s cannot be made", at->path);
        dir = open(at->path, flags);
    }
    if (dir < 0)
        return error_sys(err, -1, "%s", at->path);
    status = check_directory(dir, at, err);
    if (status != HVD_OK)
        close(dir);
    else
        *dir_p = dir;
    return status;
}

/* ---- Making ----------------------------------------------------------------------- */

static bool write_key(int fd)
{
    static const char digits[] = "0123456789abcdef";
    uint8_t *key = secret_new(HVD_KEY_BYTES + KEY_HEX + 1);
    char *text = (char *)key + HVD_KEY_BYTES;
    bool ok = key != NULL && hvd_key_generate(key, NULL) == HVD_OK;

    for (int i = 0; ok && i < HVD_KEY_BYTES; i++) {
        text[2 * i] = digits[key[i] >> 4];
        text[2 * i + 1] = digits[key[i] & 15];
    }
    if (ok)
        text[KEY_HEX] = '\n';
    ok = ok && write(fd, text, KEY_HEX + 1) == KEY_HEX + 1 && fsync(fd) == 0;
    secret_free(key, HVD_KEY_BYTES + KEY_HEX + 1);
    return ok;
}

/* Rule 1. */
static enum hvd_status make_key(int dir, const struct place *at, struct hvd_error *err)
{
    uint64_t number;
    char name[48];
    bool ok;
    int fd;

    TRY(crypto_random(&number, sizeof number, err));
    snprintf(name, sizeof name, ".key.%016llx", (unsigned long long)number);
    fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_sys(err, -1, "%s/" NAME " cannot be made", at->path);
    ok = fchmod(fd, 0600) == 0 && write_key(fd);
    ok = close(fd) == 0 && ok;
    ok = ok && (linkat(dir, name, dir, NAME, 0) == 0 || errno == EEXIST);
    if (!ok)
        error_sys(err, -1, "%s/" NAME " cannot be made", at->path);
    unlinkat(dir, name, 0);
    return ok ? HVD_OK : HVD_SYS;
}

static enum hvd_status read_or_make(int dir, const struct place *at, uint8_t *key,
                                    struct hvd_error *err)
{
    enum hvd_status status = HVD_OK;
    char shown[PATH_MAX + sizeof NAME];

    snprintf(shown, sizeof shown, "%s/" NAME, at->path);
    for (int i = 0; i < TRIES; i++) {
        errno = 0;
        status = key_file_read(dir, NAME, shown, key, err);
        if (status != HVD_SYS || (errno != ENOENT && errno != ESTALE))
            return status;
        TRY(make_key(dir, at, err));
    }
    return status;
}

static enum hvd_status get_key(bool is_home, uint8_t *key, struct hvd_error *err)
{
    struct place at;
    enum hvd_status status;
    int dir = -1;

    if (!find_place(&at, is_home))
        return error_set(err, HVD_SYS, -1, "this user (uid %u) has no home directory",
                         (unsigned)geteuid());
    TRY(open_directory(&at, &dir, err));
    status = read_or_make(dir, &at, key, err);
    close(dir);
    return status;
}

/* Says what to type; the cause stands before it. */
static enum hvd_status explain(enum hvd_status status, struct hvd_error *err)
{
    struct hvd_error why = *err;

    return error_set(err, status, -1,
                     "no job key: %.400s; start the job with horovodrun, or make a key by "
                     MAKE " and set HOROVOD_KEY_FILE to that file, which every rank has to "
                     "be able to read", why.text, "hvd.key");
}

enum hvd_status hvd_key_derive(const uint8_t own[HVD_KEY_BYTES], const char *job,
                               uint8_t key[HVD_KEY_BYTES], struct hvd_error *err)
{
    static const char salt[] = "horovod: the key of a job, from the key of a user, 1";
    struct hvd_error local;

    return crypto_derive((struct crypto_span){own, HVD_KEY_BYTES},
                         (struct crypto_span){salt, sizeof salt - 1},
                         (struct crypto_span){job, strlen(job)}, key, HVD_KEY_BYTES,
                         err != NULL ? err : &local);
}

enum hvd_status hvd_key_of_user(const char *job, bool one_host, uint8_t key[HVD_KEY_BYTES],
                                struct hvd_error *err)
{
    struct hvd_error local;
    uint8_t *own = secret_new(HVD_KEY_BYTES);
    enum hvd_status status;

    if (err == NULL)
        err = &local;
    if (own == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the job key");
    status = get_key(true, own, err);
    if (status == HVD_SYS && one_host) {    /* rule 4; a key that is refused stays refused */
        struct hvd_error first = *err;

        status = get_key(false, own, err);
        if (status != HVD_OK)
            *err = first;
    }
    if (status == HVD_OK)
        status = hvd_key_derive(own, job, key, err);
    else
        status = explain(status, err);
    secret_free(own, HVD_KEY_BYTES);
    return status;
}
