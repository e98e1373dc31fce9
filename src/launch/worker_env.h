/* worker_env.h: the environment a worker gets. */
#ifndef HVD_LAUNCH_WORKER_ENV_H
#define HVD_LAUNCH_WORKER_ENV_H

#include "launch/assign.h"
#include "launch/settings.h"

/* What all workers of a host have.  nics: comma-separated, "" none; threads: for OpenMP,
 * 0: not set. */
void worker_env_common(const struct settings *s, bool is_local, const char *nics,
                       int threads, struct env *env);
/* What one worker has above that. */
void worker_env_identity(const struct slot *slot, const char *host, const char *addr,
                         int port, const char *job_id, uint32_t generation,
                         struct env *env);

/* Whether a variable of the launcher may go to another host. */
bool worker_env_may_travel(const char *assignment);
/* Secrets, and what only this launcher's own start may have set. */
bool worker_env_is_private(const char *assignment);

#endif
