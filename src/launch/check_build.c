/*
 * check_build.c: what would work here, in the layout scripts grep.
 *
 * Nothing is imported: a framework is there when the interpreter beside horovodrun (or
 * the first python on PATH) finds both the framework and our module for it.  One python
 * with -S -I finds specs in 20 ms, where an import of torch takes seconds.
 * NCCL and the CUDA driver are looked for where a worker would: in the packages of that
 * interpreter, then in the system.  CUDA is not initialised.
 */
#include "launch/check_build.h"

#include "horovod/horovod.h"
#include "launch/mpi.h"
#include "launch/program.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct found {
    bool tensorflow, torch, mxnet, core, mpi;
    char python[PATH_MAX];
    struct hvd_gpu gpu;
};

/* Prints a letter for each of: our core, and framework with our module. */
static const char probe[] =
    "import importlib.util as u\n"
    "def has(n):\n"
    "    try: return u.find_spec(n) is not None\n"
    "    except Exception: return False\n"
    "r = ''\n"
    "if has('horovod._core'): r += 'c'\n"
    "for k, f, m in (('t', 'torch', 'horovod.torch'),\n"
    "                ('f', 'tensorflow', 'horovod.tensorflow'),\n"
    "                ('m', 'mxnet', 'horovod.mxnet')):\n"
    "    if has(f) and has(m): r += k\n"
    "s = u.find_spec('nvidia') if has('nvidia') else None\n"
    "print(r + ' ' + ':'.join(p + '/nccl/lib'\n"
    "      for p in (s.submodule_search_locations if s else ())))\n";

/* The python of the installation horovodrun belongs to. */
static bool find_python(char *path, size_t capacity)
{
    ssize_t n = readlink("/proc/self/exe", path, capacity - 16);
    char *slash;

    path[n > 0 ? n : 0] = '\0';
    slash = strrchr(path, '/');
    if (slash != NULL) {
        snprintf(slash + 1, 16, "python");
        if (access(path, X_OK) == 0)
            return true;
    }
    return program_find("python", path, capacity) ||
           program_find("python3", path, capacity);
}

/* The answer is letters, a blank, and directories. */
static void look_for_gpu(struct found *f, char *answer)
{
    char *directories = strchr(answer, ' ');

    if (directories != NULL) {
        *directories++ = '\0';
        directories[strcspn(directories, "\n")] = '\0';
        hvd_gpu_search(directories);
    }
    f->gpu.size = sizeof f->gpu;
    hvd_gpu_info(&f->gpu);
}

static void look(struct found *f)
{
    char answer[4096] = "", path[PATH_MAX], text[4096];

    memset(f, 0, sizeof *f);
    f->mpi = program_find("mpirun", path, sizeof path) &&
             program_ask((const char *[]){path, "--version", NULL}, text, sizeof text) &&
             mpi_kind_of(text) != MPI_NONE;
    if (find_python(f->python, sizeof f->python)) {
        const char *args[] = {f->python, "-c", probe, NULL};
        bool answered = program_ask(args, answer, sizeof answer);

        look_for_gpu(f, answer);
        if (answered) {
            f->core = strchr(answer, 'c') != NULL;
            f->torch = f->core && strchr(answer, 't') != NULL;
            f->tensorflow = f->core && strchr(answer, 'f') != NULL;
            f->mxnet = f->core && strchr(answer, 'm') != NULL;
        }
    }
}

static void add(struct strbuf *out, bool is_there, const char *name)
{
    strbuf_addf(out, "    [%s] %s\n", is_there ? "X" : " ", name);
}

void check_build_add(struct strbuf *out, bool verbose)
{
    struct found f;

    look(&f);
    if (verbose)
        strbuf_addf(out, "\nInterpreter: %s; extension horovod._core was %s.\n",
                    f.python[0] != '\0' ? f.python : "none",
                    f.core ? "built" : "not built");
    if (verbose)
        strbuf_addf(out, "GPU: CUDA driver %s, NCCL %s (%d). %s\n",
                    f.gpu.driver[0] != '\0' ? f.gpu.driver : "none",
                    f.gpu.nccl[0] != '\0' ? f.gpu.nccl : "none", f.gpu.nccl_version,
                    f.gpu.reason);
    strbuf_addf(out, "Horovod v%s:\n\nAvailable Frameworks:\n", hvd_version());
    add(out, f.tensorflow, "TensorFlow");
    add(out, f.torch, "PyTorch");
    add(out, f.mxnet, "MXNet");
    strbuf_addf(out, "\nAvailable Controllers:\n");
    add(out, f.mpi, "MPI");
    add(out, true, "Gloo");
    strbuf_addf(out, "\nAvailable Tensor Operations:\n");
    add(out, f.gpu.backend == HVD_GPU_NCCL, "NCCL");
    add(out, false, "DDL");
    add(out, false, "CCL");
    add(out, false, "MPI");
    add(out, true, "Gloo");
}
