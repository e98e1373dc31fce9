/*
 * probe.c: which facilities of the kernel and the CPU a collective runtime can count on
 * here.  A line each: name, yes or no, remark.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (1 << 20)

static void say(const char *what, bool there, const char *remark)
{
    printf("%-36s %-4s %s\n", what, there ? "yes" : "no", remark);
}

static void say_errno(const char *what, bool there)
{
    say(what, there, there ? "" : strerror(errno));
}

static void say_file(const char *what, const char *path)
{
    char text[128] = "";
    FILE *file = fopen(path, "re");

    if (file != NULL) {
        if (fgets(text, sizeof text, file) == NULL)
            text[0] = '\0';
        text[strcspn(text, "\n")] = '\0';
        fclose(file);
    }
    say(what, file != NULL, text);
}

/* ---- Reaching other processes ----------------------------------------------------- */

/* A child that has touched `memory` and sleeps. */
static pid_t start_child(char *memory)
{
    int ready[2];
    char byte = 1;
    pid_t child;

    if (pipe(ready) != 0 || (child = fork()) < 0) {
        perror("probe");
        exit(1);
    }
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        memset(memory, 9, BYTES);
        if (write(ready[1], &byte, 1) != 1)
            _exit(1);
        pause();
        _exit(0);
    }
    if (read(ready[0], &byte, 1) != 1)
        exit(1);
    close(ready[0]);
    close(ready[1]);
    return child;
}

static int sibling_errno(pid_t child, const struct iovec *own, const struct iovec *other)
{
    pid_t sibling = fork();
    int status;

    if (sibling == 0)
        _exit(process_vm_readv(child, own, 1, other, 1, 0) == BYTES ? 0 : errno);
    waitpid(sibling, &status, 0);
    return WEXITSTATUS(status);
}

static void probe_processes(void)
{
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *copy = malloc(BYTES);
    struct iovec own = {copy, BYTES}, other = {memory, BYTES};
    pid_t child = start_child(memory);
    int pidfd = (int)syscall(SYS_pidfd_open, child, 0), status;

    say_errno("process_vm_readv", process_vm_readv(child, &own, 1, &other, 1, 0) == BYTES);
    say_errno("process_vm_writev",
              process_vm_writev(child, &own, 1, &other, 1, 0) == BYTES);
    status = sibling_errno(child, &own, &other);
    say("process_vm_readv between siblings", status == 0,
        status == 0 ? "" : strerror(status));
    say_file("yama ptrace_scope", "/proc/sys/kernel/yama/ptrace_scope");
    say_errno("pidfd_open", pidfd >= 0);
    say_errno("pidfd_getfd", syscall(SYS_pidfd_getfd, pidfd, 0, 0) >= 0);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    free(copy);
    munmap(memory, BYTES);
}

/* ---- Memory and waiting ------------------------------------------------------------ */

static bool can_map_huge(void)
{
    int fd = memfd_create("probe", MFD_HUGETLB | MFD_CLOEXEC);
    size_t bytes = 2 << 20;
    void *p = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED)
        munmap(p, bytes);
    if (fd >= 0)
        close(fd);
    return p != MAP_FAILED;
}

static void probe_memory(void)
{
    int fd = memfd_create("probe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    unsigned word = 0;

    say_errno("memfd_create", fd >= 0);
    say_errno("memfd seals", fd >= 0 && ftruncate(fd, BYTES) == 0 &&
                                 fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    say_errno("memfd of huge pages, mapped", can_map_huge());
    say_file("transparent huge pages", "/sys/kernel/mm/transparent_hugepage/enabled");
    say_file("transparent huge pages, shared",
             "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    say_errno("futex", syscall(SYS_futex, &word, FUTEX_WAKE, 1, NULL, NULL, 0) == 0);
#if defined(SYS_futex_waitv)
    syscall(SYS_futex_waitv, NULL, 0, 0, NULL, 0);
    say("futex_waitv", errno != ENOSYS, "");
#endif
    say_errno("membarrier", syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0) > 0);
    if (fd >= 0)
        close(fd);
}

/* ---- Network ------------------------------------------------------------------------ */

static void probe_network(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1, poll_us = 50;
    char control[64] = "";
    socklen_t length = sizeof control;

    say_errno("SO_ZEROCOPY",
              setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0);
    say_errno("SO_BUSY_POLL",
              setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &poll_us, sizeof poll_us) == 0);
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control, &length) == 0)
        say("TCP congestion control", true, control);
    say_file("TCP congestion controls allowed",
             "/proc/sys/net/ipv4/tcp_allowed_congestion_control");
    say_file("io_uring disabled", "/proc/sys/kernel/io_uring_disabled");
    close(fd);
}

/* ---- CPU ---------------------------------------------------------------------------- */

static void probe_cpu(void)
{
    static const char *const flags[] = {"avx2", "fma", "f16c", "avx512f", "avx512bw",
                                        "avx512vl", "avx512_bf16", "avx512_fp16",
                                        "amx_tile", "waitpkg", "monitorx"};
    char line[8192] = "", key[32];
    FILE *file = fopen("/proc/cpuinfo", "re");

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "flags", 5) == 0 || strncmp(line, "Features", 8) == 0)
            break;
    if (file != NULL)
        fclose(file);
    line[strcspn(line, "\n")] = ' ';
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        char name[48];

        snprintf(key, sizeof key, " %s ", flags[i]);
        snprintf(name, sizeof name, "CPU %s", flags[i]);
        say(name, strstr(line, key) != NULL, "");
    }
}

int main(void)
{
    probe_processes();
    probe_memory();
    probe_network();
    probe_cpu();
    return 0;
}
