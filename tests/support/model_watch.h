/*
 * model_watch.h: forming and watching of a large job on a modelled network (model_net.h): what a
 * rank sends at init, and how a death becomes known.
 *
 * The overlay is the real one (transport/overlay.c).  Its use is modelled after watch.c, which
 * needs sockets: whoever hears of a death tells its neighbours one after the other, and its
 * mates by the alarm of their host.
 */
#ifndef TESTS_MODEL_WATCH_H
#define TESTS_MODEL_WATCH_H

#include "support/model_job.h"

/* Connections of the overlay and the rendezvous: three messages of a handshake each; an entry and
 * the table.  `messages` and `busiest_messages` are those of ranks; `peers` those of the overlay.
 * No time: it is CPU time of ranks and of the rendezvous server. */
void model_init_cost(const struct model_options *opt, struct model_cost *cost);

/* From the death of a rank until the last survivor knows; the slowest of some ranks' deaths. */
void model_death_cost(const struct model_options *opt, struct model_cost *cost);

#endif
