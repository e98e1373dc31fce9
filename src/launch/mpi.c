/*
 * mpi.c: runs mpirun or jsrun and the rendezvous server beside it.
 *
 * 1. mpirun's exit code is ours, a signal that ends it ends us, signals we get are passed
 *    on: seen from outside we are mpirun.
 * 2. The key reaches workers of this machine in a file of a private directory, which goes
 *    with us; workers elsewhere get it from mpirun's own channel (-x HOROVOD_KEY: the
 *    name is in the command line, the value is not) and wipe it at hvd_init.
 */
#include "launch/mpi.h"

#include "launch/nic.h"
#include "launch/program.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct run {
    const struct settings *settings;
    struct env env;
    uint8_t key[HVD_KEY_BYTES];
    char job_id[33];
    struct hvd_server *server;
    struct strbuf addrs;
    bool has_remote;
    char directory[PATH_MAX];           /* private, "" before it is made */
    char key_path[PATH_MAX + 16], rankfile[PATH_MAX + 16];
};

static volatile sig_atomic_t child_pid;

static void pass_on(int number)
{
    if (child_pid > 0)
        kill((pid_t)child_pid, number);
}

static enum hvd_status make_directory(struct run *r, struct hvd_error *err)
{
    const char *base = config_foreign("TMPDIR");

    snprintf(r->directory, sizeof r->directory, "%s/horovodrun-XXXXXX",
             base != NULL && *base != '\0' ? base : "/tmp");
    if (mkdtemp(r->directory) == NULL) {
        r->directory[0] = '\0';
        return error_sys(err, -1, "cannot make a private directory");
    }
    snprintf(r->key_path, sizeof r->key_path, "%s/key", r->directory);
    snprintf(r->rankfile, sizeof r->rankfile, "%s/rankfile", r->directory);
    return HVD_OK;
}

static void key_as_hex(const struct run *r, char hex[2 * HVD_KEY_BYTES + 1])
{
    for (int i = 0; i < HVD_KEY_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", r->key[i]);
}

static enum hvd_status write_file(const char *path, const char *text,
                                  struct hvd_error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    size_t bytes = strlen(text);
    bool is_written = fd >= 0 && write(fd, text, bytes) == (ssize_t)bytes;

    if (!is_written)
        error_sys(err, -1, "cannot write %s", path);
    if (fd >= 0)
        close(fd);
    return is_written ? HVD_OK : HVD_SYS;
}

static enum hvd_status hand_out_key(struct run *r, struct hvd_error *err)
{
    char hex[2 * HVD_KEY_BYTES + 1];
    enum hvd_status status = HVD_OK;

    key_as_hex(r, hex);
    if (r->has_remote) {
        env_set(&r->env, "HOROVOD_KEY", "%s", hex);
    } else {
        status = write_file(r->key_path, hex, err);
        env_set(&r->env, "HOROVOD_KEY_FILE", "%s", r->key_path);
    }
    explicit_bzero(hex, sizeof hex);
    return status;
}

static enum hvd_status start_server(struct run *r, struct hvd_error *err)
{
    const char *list[66] = {"127.0.0.1"};
    struct hvd_server_options opt = {
        .size = sizeof opt, .key = r->key, .job_id = r->job_id, .listen_addrs = list,
        .listen_addr_count = 1, .worker_count = r->settings->np,
        .timeout_s = r->settings->timeout_s};
    char *copy, *rest = NULL;
    uint8_t random[HVD_KEY_BYTES];
    enum hvd_status status;

    TRY(hvd_key_generate(r->key, err));
    TRY(hvd_key_generate(random, err));
    for (int i = 0; i < 16; i++)
        snprintf(r->job_id + 2 * i, 3, "%02x", random[i]);
    if (r->has_remote)
        nic_add_addresses(r->settings->nics, r->settings->nic_count, &r->addrs);
    copy = strdup(r->addrs.text);
    for (char *addr = copy == NULL ? NULL : strtok_r(copy, ",", &rest);
         addr != NULL && opt.listen_addr_count < 66; addr = strtok_r(NULL, ",", &rest))
        if (strcmp(addr, list[0]) != 0)
            list[opt.listen_addr_count++] = addr;
    status = hvd_server_new(&opt, &r->server, err);
    free(copy);
    return status;
}

static void add_all(struct env *env, const struct env *from)
{
    for (int i = 0; i < from->count; i++)
        env_put(env, from->items[i]);
}

static void make_env(struct run *r)
{
    const struct settings *s = r->settings;

    add_all(&r->env, &s->base);
    add_all(&r->env, &s->knobs);
    add_all(&r->env, &s->assigned);
    env_set(&r->env, "HOROVOD_CONTROLLER", "mpi");
    env_set(&r->env, "HOROVOD_CPU_OPERATIONS", "mpi");
    env_set(&r->env, "HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1%s%s",
            r->addrs.length > 0 ? "," : "", r->addrs.text);
    if (r->has_remote)
        env_set(&r->env, "HOROVOD_GLOO_RENDEZVOUS_ADDR", "%s", r->addrs.text);
    env_set(&r->env, "HOROVOD_GLOO_RENDEZVOUS_PORT", "%u", hvd_server_port(r->server));
    env_set(&r->env, "HOROVOD_RENDEZVOUS_SERVE", "0");
    env_set(&r->env, "HOROVOD_JOB_ID", "%s", r->job_id);
    env_set(&r->env, "PYTHONUNBUFFERED", "1");
}

static enum hvd_status find_mpi(enum mpi_kind *kind_p, struct hvd_error *err)
{
    char path[PATH_MAX], text[4096] = "";
    const char *args[] = {path, "--version", NULL};

    *kind_p = MPI_NONE;
    if (program_find("mpirun", path, sizeof path) && program_ask(args, text, sizeof text))
        *kind_p = mpi_kind_of(text);
    if (*kind_p != MPI_NONE)
        return HVD_OK;
    return error_set(err, HVD_UNSUPPORTED, -1,
                     "MPI support has not been built (HOROVOD_WITH_MPI=1): no mpirun of a "
                     "known MPI was found. Choose one: 1. Install Open MPI, Spectrum MPI, "
                     "MPICH or Intel MPI and make mpirun available on PATH. 2. Run the "
                     "command with the launcher of your MPI; workers find each other when "
                     "HOROVOD_GLOO_RENDEZVOUS_ADDR and HOROVOD_KEY_FILE are set. 3. Use "
                     "--gloo.");
}

static enum hvd_status make_words(struct run *r, struct mpi_words *words,
                                  struct hvd_error *err)
{
    enum mpi_kind kind;
    struct strbuf text;
    enum hvd_status status;

    if (r->settings->controller == CONTROLLER_MPI) {
        TRY(find_mpi(&kind, err));
        return mpi_command(r->settings, kind, &r->env, words, err);
    }
    if (config_foreign("LSB_JOBID") == NULL)
        return error_set(err, HVD_INVALID, -1,
                         "Horovod did not detect an LSF job. The jsrun launcher can only "
                         "be used in that environment. Please, pick a different launcher "
                         "for other environments.");
    strbuf_init(&text);
    status = mpi_rankfile(r->settings, (int)sysconf(_SC_NPROCESSORS_ONLN),
                          r->settings->hosts.items[0].slots, &text, err);
    if (status == HVD_OK)
        status = write_file(r->rankfile, text.text, err);
    strbuf_release(&text);
    mpi_jsrun_command(r->settings, r->rankfile, words);
    return status;
}

static int run_child(struct run *r, const struct mpi_words *words)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    pid_t parent = getpid(), pid = fork();
    int status = 0;

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
            _exit(1);
        execvpe(words->words[0], (char *const *)words->words, r->env.items);
        dprintf(2, "horovodrun: error: cannot run %s: %s\n", words->words[0],
                strerror(errno));
        _exit(errno == ENOENT ? 127 : 126);
    }
    if (pid < 0)
        return 1;
    child_pid = (sig_atomic_t)pid;
    for (int i = 0; i < 3; i++)
        signal(numbers[i], pass_on);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    child_pid = 0;
    if (!WIFSIGNALED(status))
        return WEXITSTATUS(status);
    return 128 + WTERMSIG(status);
}

static void release(struct run *r)
{
    hvd_server_free(r->server);
    if (r->directory[0] != '\0') {
        unlink(r->key_path);
        unlink(r->rankfile);
        rmdir(r->directory);
    }
    explicit_bzero(r->key, sizeof r->key);
    env_release(&r->env);
    strbuf_release(&r->addrs);
}

enum hvd_status mpi_run(const struct settings *s, int *code_p, struct hvd_error *err)
{
    struct run r = {.settings = s};
    struct mpi_words words = {0};
    enum hvd_status status = HVD_OK;

    env_init(&r.env);
    strbuf_init(&r.addrs);
    for (int i = 0; i < s->hosts.count; i++)
        r.has_remote |= !nic_is_local_host(s->hosts.items[i].name);
    TRY_OUT(make_directory(&r, err));
    TRY_OUT(start_server(&r, err));
    make_env(&r);
    TRY_OUT(hand_out_key(&r, err));
    TRY_OUT(make_words(&r, &words, err));
    if (s->verbose) {
        printf("%s", words.words[0]);
        for (int i = 1; i < words.count; i++)
            printf(" %s", words.words[i]);
        printf("\n");
        fflush(stdout);
    }
    *code_p = run_child(&r, &words);
out:
    mpi_words_release(&words);
    release(&r);
    if (status == HVD_OK && *code_p > 128 && *code_p < 128 + 32) {
        signal(*code_p - 128, SIG_DFL);
        if (*code_p - 128 == SIGINT || *code_p - 128 == SIGTERM)
            raise(*code_p - 128);
    }
    return status;
}
