/*
 * remote.c: ssh (or Kubeflow's kubexec.sh) as a vector of words.
 *
 * 1. The remote login shell sees one constant command.  Host, environment, key and
 *    arguments of the job never appear in a command line.
 * 2. "--" precedes the host, and host names cannot start with '-'.
 * 3. Checking of host keys is left to the user's ssh, unless the user says otherwise.
 */
#include "launch/remote.h"

#include "base/strbuf.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Our own path, when every remote shell takes it as it is; else "". */
static void own_path(char *path, size_t capacity)
{
    ssize_t n = readlink("/proc/self/exe", path, capacity - 1);

    path[n > 0 ? n : 0] = '\0';
    for (const char *p = path; *p != '\0'; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
              (*p >= '0' && *p <= '9') || strchr("/._+-", *p) != NULL)) {
            path[0] = '\0';
            return;
        }
}

/* The same installation if it is there, else what PATH finds. */
static void add_command(struct strbuf *out, const char *words)
{
    char path[PATH_MAX];

    own_path(path, sizeof path);
    if (path[0] == '\0')
        strbuf_addf(out, "exec horovodrun %s", words);
    else
        strbuf_addf(out, "exec /bin/sh -c 'test -x %s && exec %s %s; "
                         "exec horovodrun %s'", path, path, words, words);
}

void remote_args(const struct settings *s, const char *host, struct strbuf *store,
                 const char *args[REMOTE_ARGS_MAX])
{
    remote_command_args(s, host, "--agent", store, args);
}

void remote_command_args(const struct settings *s, const char *host, const char *words,
                         struct strbuf *store, const char *args[REMOTE_ARGS_MAX])
{
    size_t port_at, command_at;
    int n = 0;

    strbuf_addf(store, "%d", s->ssh_port);
    port_at = 0;
    strbuf_add(store, "", 1);
    command_at = store->length;
    add_command(store, words);
    if (s->remote_shell != NULL) {
        args[n++] = s->remote_shell;
        args[n++] = host;
    } else {
        args[n++] = "ssh";
        args[n++] = "-o";
        args[n++] = "PasswordAuthentication=no";
        args[n++] = "-o";
        args[n++] = "BatchMode=yes";
        args[n++] = "-o";
        args[n++] = "ConnectTimeout=10";
        if (s->skip_host_keys) {
            args[n++] = "-o";
            args[n++] = "StrictHostKeyChecking=no";
        }
        args[n++] = "-T";
        if (s->ssh_port > 0) {
            args[n++] = "-p";
            args[n++] = store->text + port_at;
        }
        if (s->ssh_identity != NULL) {
            args[n++] = "-i";
            args[n++] = s->ssh_identity;
        }
        args[n++] = "--";
        args[n++] = host;
    }
    args[n++] = store->text + command_at;
    args[n] = NULL;
}

static _Noreturn void run_child(const char *const *args, const int pipes[3][2],
                                pid_t parent)
{
    sigset_t none;

    /* No terminal: ssh cannot ask, and Ctrl-C reaches the launcher only. */
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(255);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    dup2(pipes[0][0], 0);
    dup2(pipes[1][1], 1);
    dup2(pipes[2][1], 2);
    execvp(args[0], (char *const *)args);
    dprintf(2, "cannot run %s: %s\n", args[0], strerror(errno));
    _exit(255);
}

enum hvd_status remote_spawn(const char *const *args, struct remote_process *proc_p,
                             struct hvd_error *err)
{
    int pipes[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}};
    pid_t parent = getpid(), pid = -1;

    if (pipe2(pipes[0], O_CLOEXEC) == 0 && pipe2(pipes[1], O_CLOEXEC) == 0 &&
        pipe2(pipes[2], O_CLOEXEC) == 0)
        pid = fork();
    if (pid == 0)
        run_child(args, pipes, parent);
    if (pid < 0) {
        enum hvd_status status = error_sys(err, -1, "cannot start %s", args[0]);

        for (int i = 0; i < 6; i++)
            if (pipes[i / 2][i % 2] >= 0)
                close(pipes[i / 2][i % 2]);
        return status;
    }
    close(pipes[0][0]);
    close(pipes[1][1]);
    close(pipes[2][1]);
    *proc_p = (struct remote_process){pid, pipes[1][0], pipes[0][1], pipes[2][0]};
    return HVD_OK;
}
