/* tf_error.c: what our errors are called in TensorFlow. */
#include "tensorflow/tf_ops.h"

#include <stdio.h>

/* Ranks disagree, or this one is not ready: FailedPreconditionError.  The call is wrong:
 * InvalidArgumentError.  The job has gone: AbortedError if somebody ended it in order,
 * UnknownError if not, which is what elastic training restores after. */
static enum tf_code code_of(enum hvd_status status)
{
    switch (status) {
    case HVD_INVALID: case HVD_REMOVED:
        return TF_INVALID_ARGUMENT;
    case HVD_MISMATCH: case HVD_REMOTE: case HVD_NOT_INIT: case HVD_FORKED:
        return TF_FAILED_PRECONDITION;
    case HVD_UNSUPPORTED:
        return TF_UNIMPLEMENTED;
    case HVD_SHUTDOWN: case HVD_ABORTED:
        return TF_ABORTED;
    case HVD_NOMEM:
        return TF_RESOURCE_EXHAUSTED;
    default:
        return TF_UNKNOWN;
    }
}

static const char *name_of(enum hvd_status status)
{
    return hvd != NULL ? hvd->status_name(status) : "NOT_INIT";
}

void error_to_context(struct tf_context *ctx, const struct hvd_error *err)
{
    struct tf_status *status = tf.NewStatus();
    char text[HVD_ERROR_TEXT + 64];

    snprintf(text, sizeof text, "[horovod %s %d] %s", name_of(err->status), err->rank,
             err->text);
    tf.SetStatus(status, code_of(err->status), text);
    tf.OpKernelContext_Failure(ctx, status);
    tf.DeleteStatus(status);
}

/* TensorFlow has refused something. */
void error_internal(struct hvd_error *err, const struct tf_status *status)
{
    err->status = tf.GetCode(status) == TF_RESOURCE_EXHAUSTED ? HVD_NOMEM : HVD_SYS;
    err->rank = -1;
    snprintf(err->text, sizeof err->text, "TensorFlow: %s", tf.Message(status));
}
