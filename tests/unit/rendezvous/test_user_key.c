/* test_user_key.c: ~/.horovod/key is made once, by whoever comes first, and kept from others. */
#include "check.h"

#include "horovod/driver.h"

#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct hvd_error err;
static uint8_t key[HVD_KEY_BYTES];
static char root[] = "/tmp/hvd-user-XXXXXX", home[64], dir[96], file[128];

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    return remove(path);
}

static void tidy(void)
{
    nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* A home of its own for each test. */
static void new_home(void)
{
    CHECK(mkdtemp(root) != NULL);
    snprintf(home, sizeof home, "%s/home", root);
    snprintf(dir, sizeof dir, "%s/.horovod", home);
    snprintf(file, sizeof file, "%s/key", dir);
    CHECK_EQ(mkdir(home, 0755), 0);
    setenv("HOME", home, 1);
    setenv("TMPDIR", root, 1);
    atexit(tidy);
}

static enum hvd_status derive(const char *job, bool one_host)
{
    memset(key, 0, sizeof key);
    return hvd_key_of_user(job, one_host, key, &err);
}

static unsigned mode_of(const char *path)
{
    struct stat info;

    CHECK_EQ(lstat(path, &info), 0);
    return info.st_mode & 07777;
}

TEST(it_is_made_once_for_its_owner_only)
{
    uint8_t first[HVD_KEY_BYTES];
    struct stat before, after;

    new_home();
    umask(0);
    CHECK_OK(derive("job 1", false), err);
    memcpy(first, key, sizeof first);
    CHECK_EQ(mode_of(dir), 0700);
    CHECK_EQ(mode_of(file), 0600);
    CHECK_EQ(stat(file, &before), 0);
    CHECK_EQ((int)before.st_size, 2 * HVD_KEY_BYTES + 1);
    CHECK_EQ((int)before.st_nlink, 1);              /* no second name is left */
    CHECK_OK(derive("job 1", false), err);
    CHECK_EQ(memcmp(first, key, sizeof first), 0);
    CHECK_EQ(stat(file, &after), 0);
    CHECK(before.st_ino == after.st_ino);
}

TEST(each_job_has_a_key_of_its_own_and_none_has_the_users)
{
    uint8_t first[HVD_KEY_BYTES];
    char text[2 * HVD_KEY_BYTES + 1] = "", hex[2 * HVD_KEY_BYTES + 1];
    FILE *f;

    new_home();
    CHECK_OK(derive("job 1", false), err);
    memcpy(first, key, sizeof first);
    CHECK_OK(derive("job 2", false), err);
    CHECK(memcmp(first, key, sizeof first) != 0);
    f = fopen(file, "r");
    CHECK(f != NULL && fgets(text, sizeof text, f) != NULL);
    fclose(f);
    for (int i = 0; i < HVD_KEY_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", key[i]);
    CHECK(strcmp(text, hex) != 0);
}

/* The ranks of a job come at the same moment. */
TEST(of_many_that_come_together_all_have_the_same)
{
    enum { MANY = 16 };
    int gate[2], results[2];
    uint8_t first[HVD_KEY_BYTES], other[HVD_KEY_BYTES];

    new_home();
    CHECK_EQ(pipe(gate), 0);
    CHECK_EQ(pipe(results), 0);
    for (int i = 0; i < MANY; i++)
        if (fork() == 0) {
            char c;

            close(gate[1]);
            (void)!read(gate[0], &c, 1);            /* until the parent opens it */
            if (derive("job", false) != HVD_OK)
                _exit(1);
            _exit(write(results[1], key, sizeof key) != sizeof key);
        }
    close(gate[0]);
    close(gate[1]);
    for (int i = 0; i < MANY; i++) {
        int status;

        CHECK(wait(&status) > 0);
        CHECK_EQ(status, 0);
        CHECK_EQ(read(results[0], i == 0 ? first : other, sizeof first),
                 (ssize_t)sizeof first);
        CHECK(i == 0 || memcmp(first, other, sizeof first) == 0);
    }
    CHECK_EQ(unlink(file), 0);
    CHECK_EQ(rmdir(dir), 0);                        /* nothing else lies there */
}

static void check_refused(const char *why)
{
    CHECK_EQ(derive("job", true), HVD_INVALID);     /* and /tmp is not asked instead */
    CHECK_HAS(err.text, why);
    CHECK_HAS(err.text, "HOROVOD_KEY_FILE");
    for (int i = 0; i < HVD_KEY_BYTES; i++)
        CHECK_EQ(key[i], 0);
}

TEST(what_others_can_read_or_replace_is_refused)
{
    new_home();
    CHECK_OK(derive("job", false), err);
    CHECK_EQ(chmod(file, 0640), 0);
    check_refused("chmod 600");
    CHECK_EQ(chmod(file, 0600), 0);
    CHECK_EQ(chmod(dir, 0770), 0);
    check_refused("chmod 700");
    CHECK_EQ(chmod(dir, 0755), 0);                  /* to be seen there harms nobody */
    CHECK_OK(derive("job", false), err);
    CHECK_EQ(truncate(file, 10), 0);
    check_refused("64 hexadecimal digits");
}

TEST(a_link_in_its_place_is_refused)
{
    char other[128];

    new_home();
    CHECK_OK(derive("job", false), err);
    snprintf(other, sizeof other, "%s/other", root);
    CHECK_EQ(rename(file, other), 0);
    CHECK_EQ(symlink(other, file), 0);
    CHECK_EQ(derive("job", false), HVD_SYS);
    CHECK_HAS(err.text, "symbolic link");
}

TEST(a_home_of_another_user_gets_no_file)
{
    if (geteuid() != 0)
        check_skip("only root can give a directory away");
    new_home();
    CHECK_EQ(chown(home, 12345, 12345), 0);
    check_refused("belongs to another user");
    CHECK(access(dir, F_OK) != 0);
}

TEST(without_a_home_one_host_still_works_and_several_are_told_what_to_type)
{
    char place[128];

    new_home();
    setenv("HOME", "/nonexistent", 1);
    CHECK_EQ(derive("job", false), HVD_SYS);
    CHECK_HAS(err.text, "/nonexistent");
    CHECK_HAS(err.text, "secrets.token_hex(32)");
    CHECK_HAS(err.text, "HOROVOD_KEY_FILE");
    CHECK_OK(derive("job", true), err);
    snprintf(place, sizeof place, "%s/horovod-%u", root, (unsigned)geteuid());
    CHECK_EQ(mode_of(place), 0700);
    CHECK_EQ(chmod(place, 0777), 0);                /* somebody else's work */
    CHECK(derive("job", true) != HVD_OK);
}
