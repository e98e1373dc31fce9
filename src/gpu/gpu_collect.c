/*
 * gpu_collect.c: operations by NCCL.  The tensors of a batch are one group of NCCL, which it
 * launches as one: nothing is packed.
 *
 *   allreduce       all-reduce
 *   broadcast       broadcast of bytes
 *   allgather       equal parts: all-gather; else a broadcast from each member
 *   alltoall        a send and a receive for each member
 *   reducescatter   equal parts: reduce-scatter; else a reduce to each member
 */
#include "base/fault.h"
#include "gpu/gpu_int.h"

#include <string.h>

static const int types[HVD_DTYPE_COUNT] = {
    [HVD_U8] = NCCL_UINT8, [HVD_I8] = NCCL_INT8, [HVD_I32] = NCCL_INT32,
    [HVD_I64] = NCCL_INT64, [HVD_F16] = NCCL_FLOAT16, [HVD_F32] = NCCL_FLOAT32,
    [HVD_F64] = NCCL_FLOAT64, [HVD_BF16] = NCCL_BFLOAT16,
    [HVD_U16] = -1, [HVD_I16] = -1, [HVD_BOOL] = -1,
};

static bool is_float(enum hvd_dtype dtype)
{
    return dtype == HVD_F16 || dtype == HVD_BF16 || dtype == HVD_F32 || dtype == HVD_F64;
}

/* Integers are averaged and scaled as on the CPU, which NCCL does not promise. */
bool gpu_nccl_can(enum hvd_op op, enum hvd_dtype dtype, enum hvd_reduce reduce, double factor)
{
    if (op != HVD_ALLREDUCE && op != HVD_REDUCESCATTER)
        return true;                    /* bytes */
    if (types[dtype] < 0 || reduce == HVD_ADASUM)
        return false;
    if (factor == 1 && reduce != HVD_AVERAGE)
        return true;
    return is_float(dtype) && (reduce == HVD_SUM || reduce == HVD_AVERAGE);
}

/* ---- Reductions --------------------------------------------------------------------------- */

static uint16_t to_bfloat16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Of a finite value that float16 can hold, rounded to nearest. */
static uint16_t to_float16(float value)
{
    uint32_t bits, sign, mantissa;
    int exponent, shift;

    memcpy(&bits, &value, sizeof bits);
    sign = bits >> 16 & 0x8000;
    exponent = (int)(bits >> 23 & 0xff) - 127 + 15;
    mantissa = (bits & 0x7fffff) | 0x800000;
    if (exponent >= 31)
        return (uint16_t)(sign | 0x7c00);
    shift = exponent > 0 ? 13 : 14 - exponent;
    if (shift > 24)
        return (uint16_t)sign;
    mantissa = (mantissa + (1u << (shift - 1)) - 1 + (mantissa >> shift & 1)) >> shift;
    if (exponent <= 0)
        return (uint16_t)(sign | mantissa);
    return (uint16_t)(sign | (((uint32_t)exponent << 10) + (mantissa - 0x400)));
}

static enum hvd_status make_factor(struct gpu_work *w, struct hvd_error *err)
{
    double value = w->reduce == HVD_AVERAGE ? w->factor / w->comm->size : w->factor;
    union { float f; double d; uint16_t half; } factor;

    if (w->dtype == HVD_F64)
        factor.d = value;
    else if (w->dtype == HVD_F32)
        factor.f = (float)value;
    else
        factor.half = w->dtype == HVD_BF16 ? to_bfloat16((float)value)
                                           : to_float16((float)value);
    return nccl_check(gpu.nccl.factor_new(&w->state->factor_op, &factor, types[w->dtype],
                                          NCCL_SCALAR_ON_HOST, w->comm->comms[w->lane]),
                      "ncclRedOpCreatePreMulSum", w->comm, err);
}

static int op_of(const struct gpu_work *w)
{
    if (w->state->factor_op > 0)
        return w->state->factor_op;
    switch (w->reduce) {
    case HVD_AVERAGE:
        return NCCL_AVG;
    case HVD_MIN:
        return NCCL_MIN;
    case HVD_MAX:
        return NCCL_MAX;
    case HVD_PRODUCT:
        return NCCL_PROD;
    default:
        return NCCL_SUM;
    }
}

/* ---- Calls -------------------------------------------------------------------------------- */

static bool are_equal(const uint64_t *counts, int n)
{
    for (int i = 1; i < n; i++)
        if (counts[i] != counts[0])
            return false;
    return true;
}

static nccl_result gather(const struct gpu_call *c, size_t element, nccl_comm comm, int rank,
                          int size, cu_stream stream)
{
    size_t at = 0;

    if (are_equal(c->counts, size))
        return c->counts[0] == 0 ? NCCL_OK
               : gpu.nccl.allgather(c->in, c->out, c->counts[0] * element, NCCL_UINT8, comm,
                                    stream);
    for (int m = 0; m < size; m++) {
        size_t bytes = c->counts[m] * element;
        char *to = (char *)c->out + at;
        nccl_result code = bytes == 0 ? NCCL_OK
                           : gpu.nccl.broadcast(m == rank ? c->in : to, to, bytes, NCCL_UINT8,
                                                m, comm, stream);

        if (code != NCCL_OK && code != NCCL_IN_PROGRESS)
            return code;
        at += bytes;
    }
    return NCCL_OK;
}

static nccl_result swap(const struct gpu_call *c, size_t element, nccl_comm comm, int size,
                        cu_stream stream)
{
    size_t from = 0, to = 0;

    for (int m = 0; m < size; m++) {
        size_t out = c->counts[m] * element, in = c->recv_counts[m] * element;
        nccl_result code = NCCL_OK;

        if (out > 0)
            code = gpu.nccl.send((const char *)c->in + from, out, NCCL_UINT8, m, comm, stream);
        if (in > 0 && (code == NCCL_OK || code == NCCL_IN_PROGRESS))
            code = gpu.nccl.receive((char *)c->out + to, in, NCCL_UINT8, m, comm, stream);
        if (code != NCCL_OK && code != NCCL_IN_PROGRESS)
            return code;
        from += out;
        to += in;
    }
    return NCCL_OK;
}

static nccl_result scatter(const struct gpu_call *c, const struct gpu_work *w, nccl_comm comm,
                           cu_stream stream)
{
    size_t element = hvd_dtype_bytes(w->dtype), at = 0;
    int type = types[w->dtype], op = op_of(w);

    if (are_equal(c->counts, w->comm->size))
        return c->counts[0] == 0 ? NCCL_OK
               : gpu.nccl.reducescatter(c->in, c->out, c->counts[0], type, op, comm, stream);
    for (int m = 0; m < w->comm->size; m++) {
        nccl_result code = c->counts[m] == 0 ? NCCL_OK
                           : gpu.nccl.reduce((const char *)c->in + at, c->out, c->counts[m],
                                             type, op, m, comm, stream);

        if (code != NCCL_OK && code != NCCL_IN_PROGRESS)
            return code;
        at += c->counts[m] * element;
    }
    return NCCL_OK;
}

static nccl_result call(const struct gpu_work *w, const struct gpu_call *c, nccl_comm comm,
                        cu_stream stream)
{
    size_t element = hvd_dtype_bytes(w->dtype);

    switch (c->op) {
    case HVD_ALLREDUCE:
        return c->count == 0 ? NCCL_OK
               : gpu.nccl.allreduce(c->in, c->out, c->count, types[w->dtype], op_of(w), comm,
                                    stream);
    case HVD_BROADCAST:
        return c->count == 0 ? NCCL_OK
               : gpu.nccl.broadcast(c->in, c->out, c->count * element, NCCL_UINT8, c->root,
                                    comm, stream);
    case HVD_ALLGATHER:
        return gather(c, element, comm, w->comm->rank, w->comm->size, stream);
    case HVD_ALLTOALL:
        return swap(c, element, comm, w->comm->size, stream);
    default:
        return scatter(c, w, comm, stream);
    }
}

/* ---- The group ---------------------------------------------------------------------------- */

/* A rank that has joined takes part with memory of ours. */
static enum hvd_status fill_joined(struct gpu_device *d, struct gpu_work *w,
                                   struct hvd_error *err)
{
    size_t element = hvd_dtype_bytes(w->dtype), bytes = 0;
    char *at;

    for (int i = 0; i < w->call_count; i++)
        bytes += w->calls[i].in == NULL ? w->calls[i].count * element : 0;
    if (bytes == 0)
        return HVD_OK;
    TRY(gpu_memory_new(d, bytes, &w->state->scratch, err));
    at = w->state->scratch;
    for (int i = 0; i < w->call_count; i++) {
        struct gpu_call *c = &w->calls[i];

        if (c->in != NULL || c->count == 0)
            continue;
        CUDA_TRY(d->index, copy, ((cu_address)at, (cu_address)c->fill, c->count * element,
                                  w->state->lane->stream), err);
        c->in = c->out = at;
        at += c->count * element;
    }
    return HVD_OK;
}

static enum hvd_status begin(struct gpu_device *d, struct gpu_work *w, struct hvd_error *err)
{
    nccl_comm comm = w->comm->comms[w->lane];
    struct gpu_lane *lane = w->state->lane;
    nccl_result code = NCCL_OK, ended;

    for (int i = 0; i < w->call_count; i++)
        if (w->calls[i].of_new >= 0)
            w->calls[i].out = w->news[w->calls[i].of_new].at;
    TRY(lane_wait_all(w, lane, err));
    TRY(fill_joined(d, w, err));
    if (w->factor != 1)
        TRY(make_factor(w, err));
    TRY(nccl_check(gpu.nccl.group_start(), "ncclGroupStart", w->comm, err));
    for (int i = 0; i < w->call_count && (code == NCCL_OK || code == NCCL_IN_PROGRESS); i++)
        code = call(w, &w->calls[i], comm, lane->stream);
    ended = gpu.nccl.group_end();
    if (code != NCCL_OK && code != NCCL_IN_PROGRESS)
        return nccl_check(code, hvd_op_name(w->calls[0].op), w->comm, err);
    return nccl_check(ended, hvd_op_name(w->calls[0].op), w->comm, err);
}

enum hvd_status collect_issue(struct gpu_device *d, struct gpu_work *w, struct hvd_error *err)
{
    nccl_result state = NCCL_OK;

    if (w->state->phase == PHASE_NEW)
        return begin(d, w, err);
    TRY(nccl_check(gpu.nccl.state(w->comm->comms[w->lane], &state), "ncclCommGetAsyncError",
                   w->comm, err));
    return nccl_check(state, hvd_op_name(w->calls[0].op), w->comm, err);
}
