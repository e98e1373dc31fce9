/* clock.c: see clock.h. */
#include "base/clock.h"

const uint64_t *clock_simulated_ns;
