/* test_job_key.c: the job key is read from where it should come, once, and kept well. */
#include "check.h"

#include "base/config.h"
#include "horovod/driver.h"
#include "rendezvous/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char hex[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1D1E1F";
static struct hvd_error err;
static uint8_t key[HVD_KEY_BYTES];
static bool found;

static enum hvd_status read_key(void)
{
    struct config conf;
    enum hvd_status status;

    CHECK_OK(config_read(&conf, &err), err);
    memset(key, 0xee, sizeof key);
    status = job_key_read(&conf, key, &found, &err);
    config_release(&conf);
    return status;
}

static void check_key(void)
{
    CHECK_OK(read_key(), err);
    CHECK(found);
    for (int i = 0; i < HVD_KEY_BYTES; i++)
        CHECK_EQ(key[i], i);
}

static void set_number(const char *variable, int value)
{
    char text[16];

    snprintf(text, sizeof text, "%d", value);
    setenv(variable, text, 1);
}

/* As a launcher hands it over. */
static int key_descriptor(void)
{
    uint8_t bytes[HVD_KEY_BYTES];
    int fd;

    for (int i = 0; i < HVD_KEY_BYTES; i++)
        bytes[i] = (uint8_t)i;
    CHECK_OK(hvd_key_descriptor(bytes, &fd, &err), err);
    set_number("HOROVOD_KEY_FD", fd);
    return fd;
}

TEST(keys_are_random)
{
    uint8_t a[HVD_KEY_BYTES], b[HVD_KEY_BYTES];

    CHECK_OK(hvd_key_generate(a, &err), err);
    CHECK_OK(hvd_key_generate(b, &err), err);
    CHECK(memcmp(a, b, sizeof a) != 0);
}

TEST(a_key_in_hand_needs_no_variable)
{
    uint8_t mine[HVD_KEY_BYTES];

    for (int i = 0; i < HVD_KEY_BYTES; i++)
        mine[i] = (uint8_t)i;
    CHECK_OK(hvd_key_set(mine, &err), err);
    check_key();
    check_key();
    setenv("HOROVOD_KEY", "no key", 1);
    CHECK_EQ(read_key(), HVD_INVALID);
}

TEST(without_a_source_there_is_none)
{
    CHECK_OK(read_key(), err);
    CHECK(!found);
}

TEST(a_descriptor_is_read_once_closed_and_remembered)
{
    int fd = key_descriptor();

    check_key();
    CHECK(fcntl(fd, F_GETFD) < 0 && errno == EBADF);
    CHECK(getenv("HOROVOD_KEY_FD") == NULL);
    check_key();                        /* a second init */
}

TEST(the_memory_behind_a_descriptor_cannot_be_changed)
{
    int fd = key_descriptor();

    CHECK(pwrite(fd, "x", 1, 8) < 0);
    CHECK(ftruncate(fd, 0) != 0);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    check_key();
}

/* What is not ours is refused, stays open, and keeps its place. */
static void check_left_alone(int fd, off_t at)
{
    set_number("HOROVOD_KEY_FD", fd);
    CHECK_EQ(read_key(), HVD_INVALID);
    CHECK_HAS(err.text, "is not the job key");
    CHECK_HAS(err.text, "pass_fds");
    CHECK(fcntl(fd, F_GETFD) >= 0);
    CHECK_EQ(lseek(fd, 0, SEEK_CUR), at);
    CHECK(!found);
    for (int i = 0; i < HVD_KEY_BYTES; i++)
        CHECK_EQ(key[i], 0);
}

TEST(what_has_the_number_of_a_lost_descriptor_is_left_alone)
{
    char bytes[64] = "HvdKey1\nthe rest looks like a key, but it is a file";
    int file = open("/tmp", O_TMPFILE | O_RDWR, 0600), ends[2];
    int open_memory = memfd_create("horovod-key", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int sealed = memfd_create("horovod-key", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CHECK_EQ(write(file, bytes, 40), 40);
    check_left_alone(file, 40);
    CHECK_EQ(write(open_memory, bytes, 40), 40);
    check_left_alone(open_memory, 40);
    bytes[3] = 'x';
    CHECK_EQ(write(sealed, bytes, 40), 40);
    CHECK_EQ(fcntl(sealed, F_ADD_SEALS,
                   F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
    check_left_alone(sealed, 40);
    CHECK_EQ(pipe(ends), 0);
    CHECK_EQ(write(ends[1], bytes, 40), 40);
    check_left_alone(ends[0], -1);
    CHECK_EQ(read(ends[0], bytes, sizeof bytes), 40);
}

TEST(a_descriptor_that_is_not_open_is_named)
{
    setenv("HOROVOD_KEY_FD", "977", 1);
    CHECK_EQ(read_key(), HVD_INVALID);
    CHECK_HAS(err.text, "HOROVOD_KEY_FD=977");
    CHECK_HAS(err.text, "not open");
}

TEST(a_socket_nobody_listens_at_is_named)
{
    setenv("HOROVOD_KEY_SOCKET", "@horovod-key-nobody", 1);
    CHECK_EQ(read_key(), HVD_PEER_LOST);
    CHECK_HAS(err.text, "has gone");
    CHECK(getenv("HOROVOD_KEY_SOCKET") == NULL);
    setenv("HOROVOD_KEY_SOCKET", "/tmp/socket", 1);
    CHECK_EQ(read_key(), HVD_INVALID);
}

TEST(a_variable_is_wiped_at_once)
{
    char *value;

    setenv("HOROVOD_KEY", hex, 1);
    value = getenv("HOROVOD_KEY");
    check_key();
    CHECK(getenv("HOROVOD_KEY") == NULL);
    CHECK_EQ(value[0], 0);              /* overwritten where it stood */
    CHECK_EQ(value[40], 0);
    check_key();
}

TEST(a_variable_that_is_no_key_is_refused_and_wiped)
{
    setenv("HOROVOD_KEY", "00ff", 1);
    CHECK_EQ(read_key(), HVD_INVALID);
    CHECK(strstr(err.text, "00ff") == NULL);
    CHECK(getenv("HOROVOD_KEY") == NULL);
}

/* ---- Files ------------------------------------------------------------------------ */

static char dir[] = "/tmp/hvd-key-XXXXXX", path[64], other[64];

static void remove_files(void)
{
    unlink(path);
    unlink(other);
    rmdir(dir);
}

static void write_key(const char *text, mode_t mode)
{
    int fd;

    if (path[0] == '\0') {
        CHECK(mkdtemp(dir) != NULL);
        snprintf(path, sizeof path, "%s/key", dir);
        snprintf(other, sizeof other, "%s/other", dir);
    }
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK_EQ(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    CHECK_EQ(fchmod(fd, mode), 0);
    close(fd);
    setenv("HOROVOD_KEY_FILE", path, 1);
}

static void check_bad_file(const char *text, mode_t mode, const char *why)
{
    write_key(text, mode);
    if (read_key() == HVD_OK) {
        remove_files();
        check_fail(__FILE__, __LINE__, "taken: %s", text);
    }
    CHECK_HAS(err.text, why);
}

TEST(a_file_is_read_with_or_without_a_line_end)
{
    char line[80];

    write_key(hex, 0600);
    check_key();
    snprintf(line, sizeof line, "%s\n", hex);
    write_key(line, 0400);
    check_key();
    remove_files();
}

TEST(a_file_that_others_can_read_or_that_is_no_key_is_refused)
{
    char line[160];

    check_bad_file(hex, 0640, "chmod 600");
    check_bad_file(hex, 0604, "chmod 600");
    check_bad_file("", 0600, "64 hexadecimal digits");
    snprintf(line, sizeof line, "%s0", hex);
    check_bad_file(line, 0600, "64 hexadecimal digits");
    snprintf(line, sizeof line, "%s\n%s\n", hex, hex);
    check_bad_file(line, 0600, "64 hexadecimal digits");
    snprintf(line, sizeof line, "%s", hex);
    line[10] = 'g';
    check_bad_file(line, 0600, "64 hexadecimal digits");
    remove_files();
}

TEST(a_link_a_directory_and_a_missing_file_are_refused)
{
    write_key(hex, 0600);
    CHECK_EQ(symlink(path, other), 0);
    setenv("HOROVOD_KEY_FILE", other, 1);
    CHECK_EQ(read_key(), HVD_SYS);
    CHECK_HAS(err.text, "symbolic link");
    setenv("HOROVOD_KEY_FILE", dir, 1);
    CHECK_EQ(read_key(), HVD_INVALID);
    CHECK_HAS(err.text, "is not a file");
    setenv("HOROVOD_KEY_FILE", "/no/such/file", 1);
    CHECK_EQ(read_key(), HVD_SYS);
    remove_files();
}

TEST(another_users_file_is_refused)
{
    if (geteuid() != 0)
        check_skip("only root can give a file away");
    write_key(hex, 0600);
    CHECK_EQ(chown(path, 65534, 65534), 0);
    CHECK_EQ(read_key(), HVD_INVALID);
    CHECK_HAS(err.text, "belongs to another user (uid 65534)");
    remove_files();
}

/* A forked child (a data loader) neither has the key nor breaks when it ends. */
TEST(a_forked_child_has_no_key)
{
    int status;
    pid_t pid;

    key_descriptor();
    check_key();
    pid = fork();
    if (pid == 0)
        exit(read_key() == HVD_OK && !found ? 0 : 1);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    check_key();
}

/* The page is left out of core dumps and wiped in children. */
TEST(the_page_is_marked)
{
    char line[256];
    bool marked = false;
    FILE *f;

    key_descriptor();
    check_key();
    f = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " dd") != NULL &&
            strstr(line, " wf") != NULL)
            marked = true;
    fclose(f);
    CHECK(marked);
}
