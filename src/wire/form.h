/*
 * form.h: what makes two tensors the same to the engine: all that ranks must agree on (but
 * for what an operation lets differ), and all that a cached name stands for.
 * Values: copied by assignment.
 */
#ifndef HVD_WIRE_FORM_H
#define HVD_WIRE_FORM_H

#include "horovod/horovod.h"

#include <string.h>

struct tensor_form {
    uint8_t op, dtype, reduce;
    uint8_t device;                     /* 0 CPU, 1 GPU */
    uint8_t ndim;
    int32_t root;                       /* set rank; OP_SET_REMOVE: the id */
    int64_t shape[HVD_DIMS_MAX];        /* ndim of them count */
    double prescale, postscale;         /* 1.0: none */
};

static inline bool form_has_shape(const struct tensor_form *f, int ndim,
                                  const int64_t *shape)
{
    return f->ndim == ndim && memcmp(f->shape, shape, f->ndim * sizeof *shape) == 0;
}

/* The same but for the first dimension. */
static inline bool form_has_rows(const struct tensor_form *f, int ndim, const int64_t *shape)
{
    return f->ndim == ndim && ndim > 0 &&
           memcmp(f->shape + 1, shape + 1, (f->ndim - 1u) * sizeof *shape) == 0;
}

/* Elements of one row. */
static inline uint64_t form_row(const struct tensor_form *f)
{
    uint64_t n = 1;

    for (int i = 1; i < f->ndim; i++)
        n *= (uint64_t)f->shape[i];
    return n;
}

/* An operation whose members may bring any number of rows, on the CPU; where a row has no
 * elements, its bytes do not tell how many there are. */
static inline bool form_can_open(const struct tensor_form *f)
{
    return (f->op == HVD_ALLGATHER || f->op == HVD_ALLTOALL) && f->device == 0 &&
           form_row(f) > 0;
}

/* The same but for the shape. */
static inline bool form_is_like(const struct tensor_form *a, const struct tensor_form *b)
{
    return a->op == b->op && a->dtype == b->dtype && a->reduce == b->reduce &&
           a->device == b->device && a->root == b->root && a->prescale == b->prescale &&
           a->postscale == b->postscale;
}

static inline bool form_equals(const struct tensor_form *a, const struct tensor_form *b)
{
    return form_is_like(a, b) && form_has_shape(a, b->ndim, b->shape);
}

#endif
