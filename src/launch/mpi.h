/* mpi.h: jobs whose processes mpirun or jsrun starts.  Collectives stay ours: workers take
 * rank and size from MPI's variables and meet at our rendezvous server. */
#ifndef HVD_LAUNCH_MPI_H
#define HVD_LAUNCH_MPI_H

#include "base/strbuf.h"
#include "launch/settings.h"

enum mpi_kind { MPI_NONE, MPI_OPEN, MPI_SPECTRUM, MPI_MPICH, MPI_INTEL };

/* From what `mpirun --version` prints. */
enum mpi_kind mpi_kind_of(const char *version_text);

struct mpi_words {
    const char **words;                 /* NULL-terminated; texts in `store` or borrowed */
    int count, capacity;
    struct mpi_store *store;
    bool failed;
};

/* The command line; env: what the workers shall have, sorted by name for -x. */
enum hvd_status mpi_command(const struct settings *s, enum mpi_kind kind,
                            const struct env *env, struct mpi_words *out,
                            struct hvd_error *err);
/* jsrun's command line, with `rankfile` unless --binding-args replaces it. */
void mpi_jsrun_command(const struct settings *s, const char *rankfile,
                       struct mpi_words *out);
/* The text of the rankfile: cpus and gpus of one host. */
enum hvd_status mpi_rankfile(const struct settings *s, int cpus, int gpus,
                             struct strbuf *out, struct hvd_error *err);
void mpi_words_release(struct mpi_words *w);

/* Runs the job.  *code_p is what mpirun ended with. */
enum hvd_status mpi_run(const struct settings *s, int *code_p, struct hvd_error *err);

#endif
