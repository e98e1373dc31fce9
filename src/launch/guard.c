/*
 * guard.c: the process above an agent, which cleans up when the agent cannot.
 *
 *     launcher or sshd -> guard -> agent -> workers -> what they have started
 *
 * 1. The guard is a subreaper: when the agent dies, what the workers have started becomes
 *    its child, in whatever session it is, and gets SIGKILL until nothing is left.
 * 2. It never reads the channel of the agent, but sees its end.  The agent is continued
 *    then, should it be stopped, and has LOST_MS to end the job before it is killed.
 * 3. SIGTERM, SIGHUP and SIGCONT go on to the agent.  The kernel sends SIGCONT when the
 *    launcher dies, so that a stopped guard wakes up, and SIGTERM to the agent when the
 *    guard dies.
 * 4. Guard and agent carry names of their own: who kills by the user's command
 *    (pkill -f train.py) or by the launcher's name does not meet those who clean up.
 */
#include "launch/guard.h"

#include "base/process.h"
#include "launch/agent.h"
#include "launch/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOST_MS 10000                   /* agents need 9 s at most */
#define KILL_MS 5000                    /* what SIGKILL does not end by then is left */
#define SWEEP_MS 10                     /* between two looks at what is left */

struct guard {
    pid_t agent;                        /* 0: reaped */
    int code;                           /* of the agent */
    int channel_fd;                     /* -1: it has ended */
    int signal_fd;
    int64_t until_ms;                   /* then the agent is killed; 0: no limit yet */
};

static char *arguments;                 /* the command line, */
static size_t arguments_bytes;          /* with its last 0 */

void guard_keep_arguments(int argc, char **argv)
{
    arguments = argv[0];
    arguments_bytes = (size_t)(argv[argc - 1] - argv[0]) + strlen(argv[argc - 1]) + 1;
}

static void set_name(const char *name)
{
    prctl(PR_SET_NAME, name);
    if (arguments_bytes <= strlen(name))
        return;
    memset(arguments, 0, arguments_bytes);
    memcpy(arguments, name, strlen(name));
}

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

/* ---- watching --------------------------------------------------------------------- */

static void reap(struct guard *g)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == g->agent) {
            g->agent = 0;
            g->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
}

static void take_signals(struct guard *g)
{
    struct signalfd_siginfo info;

    while (read(g->signal_fd, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            reap(g);
        else if (g->agent > 0 && info.ssi_signo != SIGINT)
            kill(g->agent, (int)info.ssi_signo);
    }
}

static void lose_channel(struct guard *g)
{
    close(g->channel_fd);
    g->channel_fd = -1;
    g->until_ms = now_ms() + LOST_MS;
    if (g->agent > 0)
        kill(g->agent, SIGCONT);
}

static void wait_for_event(struct guard *g, int timeout_ms)
{
    struct pollfd fds[] = {{.fd = g->signal_fd, .events = POLLIN},
                           {.fd = g->channel_fd, .events = POLLRDHUP}};

    if (poll(fds, 2, timeout_ms) <= 0)
        return;
    if (fds[0].revents != 0)
        take_signals(g);
    if (g->channel_fd >= 0 && fds[1].revents != 0)
        lose_channel(g);
}

static void wait_for_agent(struct guard *g)
{
    bool was_killed = false;

    while (g->agent > 0) {
        int64_t left_ms = g->until_ms == 0 ? -1 : g->until_ms - now_ms();

        if (g->until_ms != 0 && left_ms <= 0) {
            if (was_killed)
                return;                 /* not even SIGKILL ends it */
            was_killed = true;
            kill(g->agent, SIGKILL);
            g->until_ms = now_ms() + (left_ms = KILL_MS);
        }
        wait_for_event(g, (int)left_ms);
    }
}

/* Without an agent all its descendants are ours. */
static void end_descendants(struct guard *g)
{
    int64_t until_ms = now_ms() + KILL_MS;

    while (spawn_signal_descendants(SIGKILL) > 0 && now_ms() < until_ms)
        wait_for_event(g, SWEEP_MS);
}

/* ---- life ------------------------------------------------------------------------- */

static void block_signals(sigset_t *old_p)
{
    static const int taken[] = {SIGCHLD, SIGTERM, SIGHUP, SIGINT, SIGCONT};
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        sigaddset(&set, taken[i]);
    sigprocmask(SIG_BLOCK, &set, old_p);
}

static bool open_guard(struct guard *g, int channel_fd)
{
    sigset_t set;
    int null_fd;

    /* Nobody's pipe or terminal stays open because of us. */
    g->channel_fd = fcntl(channel_fd, F_DUPFD, 3);
    if (g->channel_fd < 0 || dup2(g->channel_fd, 3) < 0)
        return false;
    g->channel_fd = 3;
    close_from(4);
    null_fd = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++)
        dup2(null_fd, fd);
    sigprocmask(SIG_BLOCK, NULL, &set);
    g->signal_fd = signalfd(-1, &set, SFD_NONBLOCK);
    return g->signal_fd >= 0;
}

static _Noreturn void run_agent(const int fds[3], pid_t guard, const sigset_t *mask)
{
    set_name("horovod-agent");
    sigprocmask(SIG_SETMASK, mask, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != guard)
        _exit(1);
    _exit(agent_run(fds[0], fds[1], fds[2]));
}

int guard_run(int in_fd, int out_fd, int stdin_fd)
{
    const int fds[3] = {in_fd, out_fd, stdin_fd};
    struct guard g = {.code = 1};
    pid_t self = getpid();
    sigset_t mask;

    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_PDEATHSIG, SIGCONT);
    signal(SIGUSR1, SIG_IGN);           /* meant for workers, whoever sends it to all */
    signal(SIGUSR2, SIG_IGN);
    block_signals(&mask);
    g.agent = fork();
    if (g.agent < 0)
        return 1;
    if (g.agent == 0)
        run_agent(fds, self, &mask);
    set_name("horovod-guard");
    if (!open_guard(&g, in_fd)) {
        /* The agent goes on alone: it ends the job when it hears of our end. */
        return 1;
    }
    wait_for_agent(&g);
    end_descendants(&g);
    return g.code;
}
