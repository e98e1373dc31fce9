/* mpi_words.c: the command lines of mpirun and jsrun, as vectors of words. */
#include "launch/mpi.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mpi_store {
    struct mpi_store *next;
    char text[];
};

enum mpi_kind mpi_kind_of(const char *text)
{
    if (strstr(text, "IBM Spectrum MPI") != NULL)
        return MPI_SPECTRUM;
    if (strstr(text, "Open MPI") != NULL || strstr(text, "OpenRTE") != NULL)
        return MPI_OPEN;
    if (strstr(text, "Intel(R) MPI") != NULL)
        return MPI_INTEL;
    if (strstr(text, "MPICH") != NULL || strstr(text, "HYDRA") != NULL)
        return MPI_MPICH;
    return MPI_NONE;
}

static void add(struct mpi_words *w, const char *word)
{
    if (w->count + 1 >= w->capacity) {
        int capacity = w->capacity * 2 + 64;
        const char **words = realloc(w->words, (size_t)capacity * sizeof *words);

        if (words == NULL) {
            w->failed = true;
            return;
        }
        w->words = words;
        w->capacity = capacity;
    }
    w->words[w->count++] = word;
    w->words[w->count] = NULL;
}

static void addf(struct mpi_words *w, const char *format, ...)
{
    char *text = NULL;
    struct mpi_store *kept;
    va_list args;
    int n;

    va_start(args, format);
    n = vasprintf(&text, format, args);
    va_end(args);
    kept = n < 0 ? NULL : malloc(sizeof *kept + (size_t)n + 1);
    if (kept == NULL) {
        w->failed = true;
    } else {
        memcpy(kept->text, text, (size_t)n + 1);
        kept->next = w->store;
        w->store = kept;
        add(w, kept->text);
    }
    if (n >= 0)
        free(text);
}

/* "-mca a b": words separated by blanks; quotes are not interpreted. */
static void add_split(struct mpi_words *w, const char *text)
{
    while (text != NULL && *text != '\0') {
        size_t bytes;

        text += strspn(text, " \t");
        bytes = strcspn(text, " \t");
        if (bytes > 0)
            addf(w, "%.*s", (int)bytes, text);
        text += bytes;
    }
}

void mpi_words_release(struct mpi_words *w)
{
    while (w->store != NULL) {
        struct mpi_store *next = w->store->next;

        free(w->store);
        w->store = next;
    }
    free(w->words);
    memset(w, 0, sizeof *w);
}

static const char *option(const struct settings *s, enum option_id id)
{
    return s->options.values[id];
}

static void join_hosts(const struct settings *s, bool with_slots, struct strbuf *out)
{
    int left = s->np;

    for (int i = 0; i < s->hosts.count && left > 0; i++) {
        const struct host *h = &s->hosts.items[i];

        strbuf_addf(out, "%s%s", i > 0 ? "," : "", h->name);
        if (with_slots)
            strbuf_addf(out, ":%d", h->slots);
        left -= h->slots;
    }
}

static void join_nics(const struct settings *s, struct strbuf *out)
{
    for (int i = 0; i < s->nic_count; i++)
        strbuf_addf(out, "%s%s", i > 0 ? "," : "", s->nics[i]);
}

static int host_count(const struct settings *s)
{
    int left = s->np, count = 0;

    for (; count < s->hosts.count && left > 0; count++)
        left -= s->hosts.items[count].slots;
    return count;
}

static void add_ssh(const struct settings *s, struct mpi_words *w, const char *before)
{
    struct strbuf args;

    if (s->ssh_port == 0 && s->ssh_identity == NULL)
        return;
    strbuf_init(&args);
    if (s->ssh_port > 0)
        strbuf_addf(&args, "-p %d", s->ssh_port);
    if (s->ssh_identity != NULL)
        strbuf_addf(&args, "%s-i %s", args.length > 0 ? " " : "", s->ssh_identity);
    add_split(w, before);
    addf(w, "%s", args.text);
    strbuf_release(&args);
}

static bool is_forwarded(const char *assignment)
{
    return strncmp(assignment, "BASH_FUNC_", 10) != 0 &&
           strncmp(assignment, "OLDPWD", 6) != 0 &&
           strncmp(assignment, "OMPI_", 5) != 0 && strncmp(assignment, "PMIX_", 5) != 0;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void add_variables(const struct env *env, struct mpi_words *w)
{
    char **sorted = malloc((size_t)env->count * sizeof *sorted);

    if (sorted == NULL)
        return;
    memcpy(sorted, env->items, (size_t)env->count * sizeof *sorted);
    qsort(sorted, (size_t)env->count, sizeof *sorted, compare_texts);
    for (int i = 0; i < env->count; i++)
        if (is_forwarded(sorted[i])) {
            add(w, "-x");
            addf(w, "%.*s", (int)strcspn(sorted[i], "="), sorted[i]);
        }
    free(sorted);
}

static void add_binding(const struct settings *s, enum mpi_kind kind, struct mpi_words *w)
{
    const char *given = option(s, OPTION_ID_BINDING_ARGS);

    if (given != NULL)
        add_split(w, given);
    else if (kind == MPI_SPECTRUM)
        add_split(w, "-bind-to socket -map-by socket -rank-by core");
    else if (kind != MPI_INTEL)
        add_split(w, kind == MPI_OPEN ? "-bind-to none -map-by slot" : "-bind-to none");
}

static void add_open_flags(const struct settings *s, enum mpi_kind kind,
                           struct mpi_words *w)
{
    int hosts = host_count(s);

    if (kind == MPI_OPEN)
        add_split(w, "-mca pml ob1 -mca btl ^openib");
    else if (option(s, OPTION_ID_TCP) != NULL)
        add(w, "-tcp");
    if (hosts >= 64) {
        add_split(w, "-mca plm_rsh_no_tree_spawn true -mca plm_rsh_num_concurrent");
        addf(w, "%d", hosts);
    }
    if (s->timestamps)
        add(w, "--timestamp-output");
}

static void add_open(const struct settings *s, enum mpi_kind kind, const struct env *env,
                     struct mpi_words *w)
{
    struct strbuf text;

    strbuf_init(&text);
    add_split(w, "mpirun --allow-run-as-root --tag-output -np");
    addf(w, "%d", s->np);
    join_hosts(s, true, &text);
    add(w, "-H");
    addf(w, "%s", text.text);
    add_binding(s, kind, w);
    add_open_flags(s, kind, w);
    add_ssh(s, w, "-mca plm_rsh_args");
    if (s->nic_count > 0) {
        strbuf_clear(&text);
        join_nics(s, &text);
        add_split(w, "-mca btl_tcp_if_include");
        addf(w, "%s", text.text);
        add(w, "-x");
        addf(w, "NCCL_SOCKET_IFNAME=%s", text.text);
    }
    if (s->output_dir != NULL) {
        add(w, "--output-filename");
        add(w, s->output_dir);
    }
    add_variables(env, w);
    strbuf_release(&text);
}

static enum hvd_status add_hydra(const struct settings *s, enum mpi_kind kind,
                                 struct mpi_words *w, struct hvd_error *err)
{
    struct strbuf text;
    int hosts = host_count(s), slots = s->hosts.items[0].slots;

    for (int i = 1; i < hosts; i++)
        if (s->hosts.items[i].slots != slots)
            return error_set(err, HVD_INVALID, -1,
                             "Different slots in -hosts parameter are not supported in "
                             "this MPI");
    if (s->nic_count > 1)
        return error_set(err, HVD_INVALID, -1, "only one network interface is supported "
                         "with this MPI");
    strbuf_init(&text);
    add_split(w, "mpirun -l -np");
    addf(w, "%d", s->np);
    add(w, "-ppn");
    addf(w, "%d", slots);
    join_hosts(s, false, &text);
    add(w, "-hosts");
    addf(w, "%s", text.text);
    strbuf_release(&text);
    add_binding(s, kind, w);
    add_ssh(s, w, "-bootstrap=ssh -bootstrap-exec-args");
    if (s->nic_count == 1) {
        add(w, "-iface");
        add(w, s->nics[0]);
        add(w, "-genv");
        addf(w, "NCCL_SOCKET_IFNAME=%s", s->nics[0]);
    }
    if (s->output_dir != NULL) {
        add(w, "-outfile-pattern");
        addf(w, "%s/rank.%%r/stdout", s->output_dir);
    }
    return HVD_OK;
}

static void add_command(const struct settings *s, struct mpi_words *w)
{
    for (int i = 0; s->command[i] != NULL; i++)
        add(w, s->command[i]);
}

enum hvd_status mpi_command(const struct settings *s, enum mpi_kind kind,
                            const struct env *env, struct mpi_words *out,
                            struct hvd_error *err)
{
    if (kind == MPI_OPEN || kind == MPI_SPECTRUM)
        add_open(s, kind, env, out);
    else
        TRY(add_hydra(s, kind, out, err));
    add_split(out, option(s, OPTION_ID_MPI_ARGS));
    add_command(s, out);
    if (out->failed)
        return error_set(err, HVD_NOMEM, -1, "no memory for the command line");
    return HVD_OK;
}

void mpi_jsrun_command(const struct settings *s, const char *rankfile,
                       struct mpi_words *out)
{
    const char *binding = option(s, OPTION_ID_BINDING_ARGS);
    const char *extra = option(s, OPTION_ID_MPI_ARGS);
    const char *tcp = option(s, OPTION_ID_TCP) != NULL ? "-tcp" : "";

    add(out, "jsrun");
    if (binding != NULL) {
        add_split(out, binding);
    } else {
        add(out, "--erf_input");
        addf(out, "%s", rankfile);
    }
    if (s->output_dir != NULL) {
        add(out, "--stdio_stderr");
        addf(out, "%s", s->output_dir);
        add(out, "--stdio_stdout");
        addf(out, "%s", s->output_dir);
    }
    if (*tcp != '\0' || extra != NULL) {
        add(out, "--smpiargs");
        addf(out, "%s%s%s", tcp, *tcp != '\0' && extra != NULL ? " " : "",
             extra != NULL ? extra : "");
    }
    add_command(s, out);
}

enum hvd_status mpi_rankfile(const struct settings *s, int cpus, int gpus,
                             struct strbuf *out, struct hvd_error *err)
{
    int per_rank = cpus / gpus, rank = 0;

    strbuf_addf(out, "overlapping_rs: allow\ncpu_index_using: logical\n");
    for (int h = 0; h < s->hosts.count && rank < s->np; h++) {
        const struct host *host = &s->hosts.items[h];

        if (host->slots > gpus)
            return error_set(err, HVD_INVALID, -1, "host %s has %d slots, but %d GPUs",
                             host->name, host->slots, gpus);
        strbuf_add(out, "\n", 1);
        for (int i = 0; i < host->slots && rank < s->np; i++, rank++)
            strbuf_addf(out, "rank: %d: { hostname: %s; cpu: {%d-%d} ; gpu: * ; mem: * }\n",
                        rank, host->name, i * per_rank, (i + 1) * per_rank - 1);
    }
    if (rank < s->np)
        return error_set(err, HVD_INVALID, -1, "Not enough slots on the hosts to fulfill "
                         "the %d requested processes", s->np);
    return HVD_OK;
}
