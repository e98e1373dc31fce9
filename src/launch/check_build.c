/*
 * check_build.c: what would work here, in the layout scripts grep.
 *
 * Nothing is imported: a framework is there when the interpreter beside horovodrun (or
 * the first python on PATH) finds both the framework and our module for it.  One python
 * with -S -I finds specs in 20 ms, where an import of torch takes seconds.
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
    "print(r)\n";

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

static void look(struct found *f)
{
    char answer[64], path[PATH_MAX], text[4096];

    memset(f, 0, sizeof *f);
    f->mpi = program_find("mpirun", path, sizeof path) &&
             program_ask((const char *[]){path, "--version", NULL}, text, sizeof text) &&
             mpi_kind_of(text) != MPI_NONE;
    if (find_python(f->python, sizeof f->python)) {
        const char *args[] = {f->python, "-c", probe, NULL};

        if (program_ask(args, answer, sizeof answer)) {
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
    strbuf_addf(out, "Horovod v%s:\n\nAvailable Frameworks:\n", hvd_version());
    add(out, f.tensorflow, "TensorFlow");
    add(out, f.torch, "PyTorch");
    add(out, f.mxnet, "MXNet");
    strbuf_addf(out, "\nAvailable Controllers:\n");
    add(out, f.mpi, "MPI");
    add(out, true, "Gloo");
    strbuf_addf(out, "\nAvailable Tensor Operations:\n");
    add(out, false, "NCCL");
    add(out, false, "DDL");
    add(out, false, "CCL");
    add(out, false, "MPI");
    add(out, true, "Gloo");
}
