/* identity.c: rank and size from other launchers, the first whose pair is set. */
#include "api/identity.h"

static const struct {
    const char *launcher, *rank, *size, *local_rank, *local_size;
} sources[] = {
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL},
};

static enum hvd_status take(struct config *conf, const char *row, const char *variable,
                            struct hvd_error *err)
{
    const char *value = variable != NULL ? config_foreign(variable) : NULL;

    if (value == NULL || *value == '\0')
        return HVD_OK;
    if (config_set(conf, config_find(row), value, CONFIG_ENVIRONMENT, err) == HVD_OK)
        return HVD_OK;
    return error_set(err, HVD_INVALID, -1, "%s: '%.64s' is not a number", variable, value);
}

enum hvd_status identity_complete(struct config *conf, struct hvd_error *err)
{
    if (conf->source[config_find("RANK")] != CONFIG_DEFAULT ||
        conf->source[config_find("SIZE")] != CONFIG_DEFAULT)
        return HVD_OK;
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        const char *rank = config_foreign(sources[i].rank);
        const char *size = config_foreign(sources[i].size);

        if (rank == NULL && size == NULL)
            continue;
        if (rank == NULL || size == NULL)
            return error_set(err, HVD_INVALID, -1,
                             "%s and %s must be set together (%s)", sources[i].rank,
                             sources[i].size, sources[i].launcher);
        TRY(take(conf, "RANK", sources[i].rank, err));
        TRY(take(conf, "SIZE", sources[i].size, err));
        TRY(take(conf, "LOCAL_RANK", sources[i].local_rank, err));
        return take(conf, "LOCAL_SIZE", sources[i].local_size, err);
    }
    return HVD_OK;
}
