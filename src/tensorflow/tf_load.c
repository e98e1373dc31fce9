/*
 * tf_load.c: what happens when TensorFlow loads this library (tf.load_op_library): the
 * constructor finds TensorFlow's functions and registers the ops.  Python then asks what
 * went wrong, if anything, and hands over the functions of `_core`.
 */
#include "tensorflow/tf_ops.h"

#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))

const struct hvd_calls *hvd;

static char text[512];
static const char *problem = "TensorFlow has not loaded this library";

__attribute__((constructor)) static void load(void)
{
    const char *missing = tf_api_find();

    problem = NULL;
    if (missing == NULL) {
        problem = ops_define(text, sizeof text);
        return;
    }
    snprintf(text, sizeof text, "it has no function %s", missing);
    problem = text;
}

EXPORT const char *horovod_tensorflow_use(const struct hvd_calls *calls);
EXPORT void horovod_tensorflow_block(bool all);

/* NULL, or why the ops cannot be used. */
EXPORT const char *horovod_tensorflow_use(const struct hvd_calls *calls)
{
    if (problem == NULL && calls->bytes != sizeof *calls)
        problem = "the op library and _core are of different versions of Horovod";
    if (problem == NULL)
        hvd = calls;
    return problem;
}

/* For tests: operations wait in their threads, as with a TensorFlow whose completions
 * cannot be kept. */
EXPORT void horovod_tensorflow_block(bool all)
{
    done_refuse(all);
}
