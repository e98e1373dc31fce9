/* job_harness.c: see job_harness.h.  Children are forked before the server's thread exists;
 * a pipe tells them its port and the key. */
#include "job_harness.h"

#include "check.h"
#include "horovod/driver.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct ticket {
    uint16_t port;
    uint8_t key[HVD_KEY_BYTES];
};

static void set_number(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void set_identity(const struct job_options *opt, int rank, const struct ticket *t)
{
    char hex[2 * HVD_KEY_BYTES + 1], host[32];

    for (int i = 0; i < HVD_KEY_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", t->key[i]);
    set_number("HOROVOD_RANK", rank);
    set_number("HOROVOD_SIZE", opt->size);
    set_number("HOROVOD_GLOO_RENDEZVOUS_PORT", t->port);
    setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1", 1);
    setenv("HOROVOD_KEY", hex, 1);
    if (opt->hosts > 1) {
        snprintf(host, sizeof host, "host%d", rank * opt->hosts / opt->size);
        setenv("HOROVOD_HOSTNAME", host, 1);
    }
    for (int i = 0; opt->env != NULL && opt->env[i] != NULL; i++)
        putenv((char *)opt->env[i]);
}

static _Noreturn void be_rank(const struct job_options *opt, int rank, int pipe_fd,
                              job_body_fn body, void *context)
{
    struct ticket t;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(check_limit_s(opt->limit_s > 0 ? opt->limit_s : 50));
    if (read(pipe_fd, &t, sizeof t) != (ssize_t)sizeof t)
        _exit(3);
    close(pipe_fd);
    set_identity(opt, rank, &t);
    body(rank, opt->size, context);
    fflush(NULL);
    exit(0);
}

void job_start(struct job *job, const struct job_options *opt, job_body_fn body,
               void *context)
{
    struct hvd_server_options server = {.size = sizeof server,
                                        .worker_count = opt->size, .timeout_s = 30};
    struct hvd_error err;
    struct ticket t;
    int pipes[JOB_RANKS_MAX];

    job->size = opt->size;
    strcpy(job->dir, "/tmp/hvd-job-XXXXXX");
    CHECK(mkdtemp(job->dir) != NULL);
    for (int rank = 0; rank < opt->size; rank++) {
        int ends[2];

        CHECK_EQ(pipe(ends), 0);
        job->pids[rank] = fork();
        if (job->pids[rank] == 0) {
            setenv("HOROVOD_RECORDER_DIR", job->dir, 1);
            close(ends[1]);
            for (int before = 0; before < rank; before++)
                close(pipes[before]);
            be_rank(opt, rank, ends[0], body, context);
        }
        close(ends[0]);
        pipes[rank] = ends[1];
    }
    CHECK_OK(hvd_key_generate(t.key, &err), err);
    server.key = t.key;
    server.job_id = "";
    CHECK_OK(hvd_server_new(&server, &job->server, &err), err);
    t.port = hvd_server_port(job->server);
    for (int rank = 0; rank < opt->size; rank++) {
        CHECK_EQ(write(pipes[rank], &t, sizeof t), (ssize_t)sizeof t);
        close(pipes[rank]);
    }
}

int job_wait(struct job *job, int rank)
{
    int status;

    while (waitpid(job->pids[rank], &status, 0) < 0)
        if (errno != EINTR)
            return -1000;
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info, (void)kind, (void)where;
    return remove(path);
}

void job_end(struct job *job)
{
    hvd_server_free(job->server);
    nftw(job->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* What ranks have written to files of their own instead of our stderr. */
static void show_errors(const struct job *job)
{
    DIR *dir = opendir(job->dir);
    char line[4096];

    for (struct dirent *file; dir != NULL && (file = readdir(dir)) != NULL;) {
        int fd = strncmp(file->d_name, "err", 3) == 0
                     ? openat(dirfd(dir), file->d_name, O_RDONLY | O_CLOEXEC) : -1;
        FILE *in = fd >= 0 ? fdopen(fd, "r") : NULL;

        while (in != NULL && fgets(line, sizeof line, in) != NULL)
            fprintf(stderr, "%s: %s", file->d_name, line);
        if (in != NULL)
            fclose(in);
    }
    if (dir != NULL)
        closedir(dir);
}

void job_run(const struct job_options *opt, job_body_fn body, void *context)
{
    struct job job;
    int failed = -1, code = 0;

    job_start(&job, opt, body, context);
    for (int rank = 0; rank < opt->size; rank++) {
        int result = job_wait(&job, rank);

        if (result != 0 && failed < 0)
            failed = rank, code = result;
    }
    if (failed >= 0)
        show_errors(&job);
    job_end(&job);
    if (failed >= 0)
        check_fail(__FILE__, __LINE__, "rank %d of %d ended with %d", failed, opt->size,
                   code);
}

void job_init(void)
{
    struct hvd_error err;

    CHECK_OK(hvd_init(NULL, &err), err);
}

double job_sum(const char *name, double value)
{
    struct hvd_error err;
    struct hvd_request req = {.size = sizeof req, .op = HVD_ALLREDUCE, .dtype = HVD_F64,
                              .reduce = HVD_SUM, .device = -1, .name = name, .ndim = 1,
                              .shape = {1}, .input = &value, .output = &value};

    CHECK_OK(hvd_run(&req, &err), err);
    return value;
}
