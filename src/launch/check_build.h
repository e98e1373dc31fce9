/* check_build.h: --check-build. */
#ifndef HVD_LAUNCH_CHECK_BUILD_H
#define HVD_LAUNCH_CHECK_BUILD_H

#include "base/strbuf.h"

#include <stdbool.h>

void check_build_add(struct strbuf *out, bool verbose);

#endif
