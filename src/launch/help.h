/* help.h: what horovodrun tells about itself. */
#ifndef HVD_LAUNCH_HELP_H
#define HVD_LAUNCH_HELP_H

#include "base/strbuf.h"
#include "launch/settings.h"

void help_add_usage(struct strbuf *out);        /* a short "usage: ..." */
void help_add_page(struct strbuf *out);         /* --help */
/* --print-config: every variable, its value, its default, who set it. */
enum hvd_status help_add_config(const struct settings *s, struct strbuf *out,
                                struct hvd_error *err);

/* The options given, as a JSON object. */
void help_add_args(const struct options *opt, struct strbuf *out);

#endif
