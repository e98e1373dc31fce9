/*
 * mpi.c: runs mpirun or jsrun and the rendezvous server beside it.
 *
 * 1. mpirun's exit code is ours, a signal that ends it ends us, signals we get are passed
 *    on: seen from outside we are mpirun.
 * 2. Workers of this machine ask us for the key (key_desk.h): mpirun closes descriptors.
 *    Workers elsewhere get it from mpirun's own channel (-x HOROVOD_KEY: the name is in
 *    the command line, the value is not) and wipe it at hvd_init.
 * 3. Nothing lies in the file system, so that nothing can be left there: jsrun reads its
 *    rank file from our memory.
 */
#include "launch/mpi.h"

#include "base/secret.h"
#include "launch/key_desk.h"
#include "launch/nic.h"
#include "launch/program.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct run {
    const struct settings *settings;
    struct env env;
    uint8_t *key;                       /* HVD_KEY_BYTES of secret memory */
    char job_id[33];
    struct hvd_server *server;
    struct strbuf addrs;
    bool has_remote;
    int key_fd, desk_fd;                /* rule 2; -1: none */
    int rankfile_fd;                    /* rule 3; -1: none */
};

static volatile sig_atomic_t child_pid;

static void pass_on(int number)
{
    if (child_pid > 0)
        kill((pid_t)child_pid, number);
}

/* mpirun's copy of the environment has the value, ours only while it is being started. */
static void put_key(const struct run *r)
{
    char *hex = (char *)env_get(&r->env, "HOROVOD_KEY");

    for (int i = 0; i < HVD_KEY_BYTES && hex != NULL; i++)
        snprintf(hex + 2 * i, 3, "%02x", r->key[i]);
}

static void take_key_back(const struct run *r)
{
    char *hex = (char *)env_get(&r->env, "HOROVOD_KEY");

    if (hex != NULL)
        explicit_bzero(hex, strlen(hex));
}

static enum hvd_status hand_out_key(struct run *r, struct hvd_error *err)
{
    char name[KEY_DESK_NAME];

    if (r->has_remote) {
        env_set(&r->env, "HOROVOD_KEY", "%0*d", 2 * HVD_KEY_BYTES, 0);
        return HVD_OK;
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);   /* what mpirun detaches stays our descendant */
    TRY(hvd_key_descriptor(r->key, &r->key_fd, err));
    TRY(key_desk_open(name, &r->desk_fd, err));
    env_set(&r->env, "HOROVOD_KEY_SOCKET", "%s", name);
    return HVD_OK;
}

static enum hvd_status start_server(struct run *r, struct hvd_error *err)
{
    const char *list[66] = {"127.0.0.1"};
    struct hvd_server_options opt = {
        .size = sizeof opt, .job_id = r->job_id, .listen_addrs = list,
        .listen_addr_count = 1, .worker_count = r->settings->np,
        .timeout_s = r->settings->timeout_s};
    char *copy, *rest = NULL;
    uint8_t random[HVD_KEY_BYTES];
    enum hvd_status status;

    r->key = secret_new(HVD_KEY_BYTES);
    if (r->key == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the job key");
    opt.key = r->key;
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

/* Rule 3. */
static enum hvd_status keep_rankfile(struct run *r, const struct strbuf *text,
                                     struct hvd_error *err)
{
    r->rankfile_fd = memfd_create("horovod-rankfile", MFD_CLOEXEC);
    if (r->rankfile_fd < 0 ||
        write(r->rankfile_fd, text->text, text->length) != (ssize_t)text->length)
        return error_sys(err, -1, "cannot keep the rank file in memory");
    return HVD_OK;
}

static enum hvd_status make_words(struct run *r, struct mpi_words *words,
                                  struct hvd_error *err)
{
    enum mpi_kind kind;
    struct strbuf text;
    enum hvd_status status;
    char path[64];

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
        status = keep_rankfile(r, &text, err);
    strbuf_release(&text);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), r->rankfile_fd);
    mpi_jsrun_command(r->settings, path, words);
    return status;
}

/* Hands out the key until the child has ended. */
static int wait_for_child(const struct run *r, pid_t pid)
{
    struct pollfd fds[] = {{.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN},
                           {.fd = r->desk_fd, .events = POLLIN}};
    int status = 0;

    while (fds[0].fd >= 0 && fds[0].revents == 0)
        if (poll(fds, 2, -1) > 0 && fds[1].revents != 0)
            key_desk_serve(r->desk_fd, r->key_fd);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (fds[0].fd >= 0)
        close(fds[0].fd);
    return status;
}

static int run_child(struct run *r, const struct mpi_words *words)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    pid_t parent = getpid(), pid;
    int status;

    put_key(r);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
            _exit(1);
        execvpe(words->words[0], (char *const *)words->words, r->env.items);
        dprintf(2, "horovodrun: error: cannot run %s: %s\n", words->words[0],
                strerror(errno));
        _exit(errno == ENOENT ? 127 : 126);
    }
    take_key_back(r);
    if (pid < 0)
        return 1;
    child_pid = (sig_atomic_t)pid;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        signal(numbers[i], pass_on);
    status = wait_for_child(r, pid);
    child_pid = 0;
    if (!WIFSIGNALED(status))
        return WEXITSTATUS(status);
    return 128 + WTERMSIG(status);
}

static void release(struct run *r)
{
    const int fds[] = {r->key_fd, r->desk_fd, r->rankfile_fd};

    hvd_server_free(r->server);
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    secret_free(r->key, HVD_KEY_BYTES);
    env_release(&r->env);
    strbuf_release(&r->addrs);
}

enum hvd_status mpi_run(const struct settings *s, int *code_p, struct hvd_error *err)
{
    struct run r = {.settings = s, .key_fd = -1, .desk_fd = -1, .rankfile_fd = -1};
    struct mpi_words words = {0};
    enum hvd_status status = HVD_OK;

    env_init(&r.env);
    strbuf_init(&r.addrs);
    for (int i = 0; i < s->hosts.count; i++)
        r.has_remote |= !nic_is_local_host(s->hosts.items[i].name);
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
