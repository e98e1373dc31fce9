/*
 * join.c: horovodrun --join ADDRESS:PORT.
 *
 *   this process == proved channel == the job's launcher
 *        |  socket pair
 *      guard -> agent -> workers          as on every other host
 *
 * 1. The agent is forked before this process has the key.
 * 2. The first signal is notice: the agent tells the launcher, the workers leave at their
 *    next commit.  The second one ends them.  Ctrl-C reaches this process only.
 * 3. The key never stands in a command line; what is typed is not shown.
 */
#include "launch/join.h"

#include "base/secret.h"
#include "launch/guard.h"
#include "launch/node.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define LABEL "join"                    /* what the key of the user is derived for */

/* ---- The key ---------------------------------------------------------------------- */

static bool has_own_key(void)
{
    const char *home = config_foreign("HOME");
    char path[PATH_MAX];

    return home != NULL &&
           (size_t)snprintf(path, sizeof path, "%s/.horovod/key", home) < sizeof path &&
           access(path, F_OK) == 0;
}

/* Rule 3. */
static enum hvd_status ask_key(int terminal, uint8_t own[HVD_KEY_BYTES],
                               struct hvd_error *err)
{
    static const char question[] = "Key of the job (64 hexadecimal digits): ";
    struct termios shown, hidden;
    char text[256];
    ssize_t n = -1;

    if (tcgetattr(terminal, &shown) == 0) {
        hidden = shown;
        hidden.c_lflag &= ~(tcflag_t)ECHO;
        if (write(terminal, question, sizeof question - 1) > 0 &&
            tcsetattr(terminal, TCSAFLUSH, &hidden) == 0) {
            n = read(terminal, text, sizeof text);
            tcsetattr(terminal, TCSAFLUSH, &shown);
            if (write(terminal, "\n", 1) < 0)
                n = -1;
        }
    }
    if (n <= 0 || !node_parse_key(text, (size_t)n, own)) {
        explicit_bzero(text, sizeof text);
        return error_set(err, HVD_INVALID, -1, "that was no key of 64 hexadecimal digits");
    }
    explicit_bzero(text, sizeof text);
    return HVD_OK;
}

static enum hvd_status ask_at_terminal(uint8_t own[HVD_KEY_BYTES], struct hvd_error *err)
{
    int terminal = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
    enum hvd_status status;

    if (terminal < 0)
        return HVD_AGAIN;
    status = ask_key(terminal, own, err);
    close(terminal);
    return status;
}

/* HVD_AGAIN: none of these. */
static enum hvd_status find_key(const struct settings *s, bool may_ask,
                                uint8_t own[HVD_KEY_BYTES], struct hvd_error *err)
{
    const char *file = s->key_file != NULL ? s->key_file
                                           : config_foreign("HOROVOD_KEY_FILE");
    const char *text = config_foreign("HOROVOD_KEY");

    if (file != NULL && file[0] != '\0')
        return node_read_key(file, own, err);
    if (text != NULL && text[0] != '\0')
        return node_parse_key(text, strlen(text), own)
                   ? HVD_OK : error_set(err, HVD_INVALID, -1, "HOROVOD_KEY does not hold 64 "
                                        "hexadecimal digits");
    return may_ask && !has_own_key() ? ask_at_terminal(own, err) : HVD_AGAIN;
}

enum hvd_status join_read_key(const struct settings *s, bool may_ask,
                              uint8_t key[HVD_KEY_BYTES], struct hvd_error *err)
{
    uint8_t *own = secret_new(HVD_KEY_BYTES);
    enum hvd_status status;

    if (own == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a key");
    status = find_key(s, may_ask, own, err);
    if (status == HVD_OK)
        status = hvd_key_derive(own, LABEL, key, err);
    else if (status == HVD_AGAIN)
        status = hvd_key_of_user(LABEL, true, key, err);
    secret_free(own, HVD_KEY_BYTES);
    return status;
}

/* ---- The agent -------------------------------------------------------------------- */

static volatile pid_t guard_pid;

/* Rule 2. */
static void on_signal(int number)
{
    int code = errno;

    (void)number;
    if (guard_pid > 0)
        kill(guard_pid, SIGTERM);
    errno = code;
}

static void watch_signals(void)
{
    static const int taken[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal};

    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        sigaction(taken[i], &action, NULL);
}

/* Its process, and our end of what it says. */
static enum hvd_status start_agent(int *fd_p, struct hvd_error *err)
{
    int pair[2];
    pid_t pid;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return error_sys(err, -1, "cannot make a socket pair");
    pid = fork();
    if (pid < 0)
        return error_sys(err, -1, "cannot start the agent");
    if (pid == 0) {
        close(pair[0]);
        setsid();                       /* out of reach of the terminal */
        _exit(guard_run(pair[1], pair[1], -1));
    }
    guard_pid = pid;
    close(pair[1]);
    *fd_p = pair[0];
    return HVD_OK;
}

static int wait_for_agent(void)
{
    int status = 0;

    while (waitpid(guard_pid, &status, 0) < 0 && errno == EINTR)
        ;
    guard_pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* ---- Joining ---------------------------------------------------------------------- */

static enum hvd_status serve(const struct settings *s, int fd, uint8_t *key,
                             struct hvd_error *err)
{
    char host[256] = "";
    struct hvd_join_options opt = {.size = sizeof opt, .addrs = s->join.host,
                                   .port = (uint16_t)s->join.port, .key = key,
                                   .host = host, .slots = s->join.slots,
                                   .timeout_s = s->start_timeout_s};

    gethostname(host, sizeof host - 1);
    TRY(join_read_key(s, true, key, err));
    return hvd_join(&opt, fd, err);
}

static void explain(const struct settings *s, const struct hvd_error *err)
{
    fprintf(stderr, "horovodrun: error: cannot join the job at %s port %d: %s%s\n",
            s->join.host, s->join.port, err->text,
            err->status != HVD_AUTH ? ""
                : "; the job was started with another key: give --key-file with a copy of "
                  "~/.horovod/key of the user who started it, or of its --key-file");
}

int join_run(const struct settings *s)
{
    uint8_t *key = secret_new(HVD_KEY_BYTES);
    struct hvd_error err = {.rank = -1};
    enum hvd_status status = HVD_NOMEM;
    int fd = -1, code;

    if (key != NULL)
        status = start_agent(&fd, &err);
    watch_signals();
    if (status == HVD_OK)
        status = serve(s, fd, key, &err);
    if (fd >= 0)
        close(fd);                      /* the end of the agent, if it has not ended */
    code = guard_pid > 0 ? wait_for_agent() : 1;
    secret_free(key, HVD_KEY_BYTES);
    if (status == HVD_OK || (status == HVD_PEER_LOST && code == 0))
        return code;                    /* an agent that had to stop by itself says 1 */
    if (status == HVD_PEER_LOST)
        fprintf(stderr, "horovodrun: the job at %s port %d has gone\n", s->join.host,
                s->join.port);
    else
        explain(s, &err);
    return 1;
}
