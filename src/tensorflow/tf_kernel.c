/*
 * tf_kernel.c: a kernel and its attributes.
 *
 * tensor_name has the name that the node was made with (none in eager mode) in its first line,
 * and then the wire names of the tensors, a line for each; one line for several tensors is the
 * name of their group.  Without any the engine counts.  If the node has a longer name now, its
 * function was built into another one, perhaps several times: what has come before the name
 * tells them apart, and comes before the wire names as well.
 */
#include "tensorflow/tf_ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int get_int(struct tf_construction *c, const char *name, struct tf_status *status)
{
    int32_t value = 0;

    if (tf.GetCode(status) == TF_OK)
        tf.OpKernelConstruction_GetAttrInt32(c, name, &value, status);
    return value;
}

/* A double crosses as the integer of its bits: attributes have 32-bit floats only. */
static double get_double(struct tf_construction *c, const char *name,
                         struct tf_status *status)
{
    int64_t bits = 0;
    double value;

    if (tf.GetCode(status) == TF_OK)
        tf.OpKernelConstruction_GetAttrInt64(c, name, &bits, status);
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Terminated, in memory of its own; NULL if there is none. */
static char *get_text(struct tf_construction *c, const char *name,
                      struct tf_status *status)
{
    int32_t list, length = 0;
    char *text;

    if (tf.GetCode(status) == TF_OK)
        tf.OpKernelConstruction_GetAttrSize(c, name, &list, &length, status);
    if (tf.GetCode(status) != TF_OK || length <= 0)
        return NULL;
    text = calloc(1, (size_t)length + 1);
    if (text == NULL)
        tf.SetStatus(status, TF_RESOURCE_EXHAUSTED, "no memory for a name");
    else
        tf.OpKernelConstruction_GetAttrString(c, name, text, (size_t)length, status);
    return text;
}

/* node is prefix/made: the length of prefix and slash, else 0. */
static size_t prefix_length(struct tf_text node, const char *made)
{
    size_t length = strlen(made);

    if (length == 0 || node.length <= length + 1 ||
        node.data[node.length - length - 1] != '/' ||
        memcmp(node.data + node.length - length, made, length) != 0)
        return 0;
    return node.length - length;
}

static int count_lines(const char *text)
{
    int count = 1;

    for (; *text != '\0'; text++)
        count += *text == '\n';
    return count;
}

static void set_names(struct kernel *k, struct tf_text node, char *lines,
                      struct tf_status *status)
{
    size_t prefix = prefix_length(node, strsep(&lines, "\n"));
    int count = lines != NULL ? count_lines(lines) : 0;

    k->name = calloc((size_t)count + 1, sizeof *k->name);
    for (int i = 0; k->name != NULL && i < count; i++) {
        if (asprintf(&k->name[i], "%.*s%s", (int)prefix, node.data, strsep(&lines, "\n")) < 0)
            break;
        k->name_count++;
    }
    if (k->name == NULL || k->name_count < count)
        tf.SetStatus(status, TF_RESOURCE_EXHAUSTED, "no memory for names");
}

static void get_names(struct kernel *k, struct tf_construction *c,
                      struct tf_status *status)
{
    char *text = get_text(c, "tensor_name", status);

    if (text != NULL && tf.GetCode(status) == TF_OK)
        set_names(k, tf.OpKernelConstruction_GetName(c), text, status);
    free(text);
}

static void get_attributes(struct kernel *k, struct tf_construction *c,
                           struct tf_status *status)
{
    unsigned char pass = 0;

    get_names(k, c, status);
    k->process_set = get_int(c, "process_set", status);
    k->guards = get_int(c, "guards", status);
    if (tf.GetCode(status) == TF_OK)
        tf.OpKernelConstruction_GetAttrBool(c, "pass_by", &pass, status);
    k->pass = pass != 0;
    if (k->op == HVD_BROADCAST)
        k->root = get_int(c, "root", status);
    if (k->op == HVD_ALLTOALL)
        k->has_splits = get_int(c, "given", status) > 0;
    if (k->op != HVD_ALLREDUCE && k->op != HVD_REDUCESCATTER)
        return;
    k->reduce = (enum hvd_reduce)get_int(c, "reduce", status);
    k->prescale = get_double(c, "prescale", status);
    k->postscale = get_double(c, "postscale", status);
}

/* In eager mode a kernel is named like its op. */
static bool is_eager(struct tf_construction *c, const char *word)
{
    static const char prefix[] = "Horovod";
    struct tf_text name = tf.OpKernelConstruction_GetName(c);
    size_t length = strlen(word), start = sizeof prefix - 1;

    return name.length == start + length && memcmp(name.data, prefix, start) == 0 &&
           memcmp(name.data + start + 1, word + 1, length - 1) == 0;
}

static void *kernel_create(struct tf_construction *c, enum hvd_op op, const char *word)
{
    struct tf_status *status = tf.NewStatus();
    struct kernel *k = calloc(1, sizeof *k);

    if (k == NULL) {
        tf.SetStatus(status, TF_RESOURCE_EXHAUSTED, "no memory for a kernel");
    } else {
        k->op = op;
        k->eager = is_eager(c, word);
        k->prescale = k->postscale = 1.0;
        if (op != HVD_JOIN)
            get_attributes(k, c, status);
    }
    if (tf.GetCode(status) != TF_OK)
        tf.OpKernelConstruction_Failure(c, status);
    tf.DeleteStatus(status);
    return k;
}

#define KERNEL_CREATOR(word, op)                                                       \
    void *kernel_create_##word(struct tf_construction *c)                              \
    {                                                                                  \
        return kernel_create(c, HVD_##op, #word);                                      \
    }
KERNEL_CREATORS(KERNEL_CREATOR)

void kernel_delete(void *kernel)
{
    struct kernel *k = kernel;

    if (k == NULL)
        return;
    for (int i = 0; i < k->name_count; i++)
        free(k->name[i]);
    free(k->name);
    free(k);
}
