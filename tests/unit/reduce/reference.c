/* reference.c: see reference.h. */
#include "reference.h"

#include <math.h>
#include <string.h>

struct format {
    int mantissa_bits, exponent_bits;
};

static struct format format_of(bool brain)
{
    return brain ? (struct format){7, 8} : (struct format){10, 5};
}

double ref_half_value(uint16_t half, bool brain)
{
    struct format f = format_of(brain);
    int bias = (1 << (f.exponent_bits - 1)) - 1;
    int exponent = (half >> f.mantissa_bits) & ((1 << f.exponent_bits) - 1);
    int mantissa = half & ((1 << f.mantissa_bits) - 1);
    double value;

    if (exponent == (1 << f.exponent_bits) - 1)
        value = mantissa != 0 ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp(mantissa, 1 - bias - f.mantissa_bits);
    else
        value = ldexp(mantissa + (1 << f.mantissa_bits),
                      exponent - bias - f.mantissa_bits);
    return half & 0x8000 ? -value : value;
}

uint16_t ref_half_round(double x, bool brain)
{
    struct format f = format_of(brain);
    int bias = (1 << (f.exponent_bits - 1)) - 1, exponent;
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    uint16_t infinity = (uint16_t)(((1 << f.exponent_bits) - 1) << f.mantissa_bits);
    double units;

    if (isnan(x))
        return (uint16_t)(infinity | 1 << (f.mantissa_bits - 1));
    if (isinf(x))
        return sign | infinity;
    frexp(x, &exponent);                        /* |x| in [2^(exponent-1), 2^exponent) */
    if (x == 0.0 || exponent - 1 < 1 - bias)
        exponent = 2 - bias;                    /* subnormal: the unit stays */
    units = nearbyint(ldexp(fabs(x), f.mantissa_bits - (exponent - 1)));
    /* Whole units above the subnormal range count on from there; a carry included. */
    units += ldexp(exponent - 2 + bias, f.mantissa_bits);
    return units >= infinity ? sign | infinity : sign | (uint16_t)units;
}

static float ref_load_float(const struct red_job *job, int r, size_t i)
{
    const char *p = job->src[r];
    uint16_t half;
    float x;

    if (job->src_type == HVD_F32) {
        memcpy(&x, p + 4 * i, 4);
        return x;
    }
    memcpy(&half, p + 2 * i, 2);
    return (float)ref_half_value(half, job->src_type == HVD_BF16);
}

#define REF_FLOAT(type)                                                                \
    static type ref_combine_##type(type a, type b, enum red_op op)                     \
    {                                                                                  \
        if (op == RED_SUM)                                                             \
            return a + b;                                                              \
        if (op == RED_PROD)                                                            \
            return a * b;                                                              \
        if (isnan(a) || isnan(b))                                                      \
            return (type)NAN;                                                          \
        return op == RED_MIN ? (a < b ? a : b) : (a > b ? a : b);                      \
    }
REF_FLOAT(float)
REF_FLOAT(double)

static double ref_post(const struct red_job *job)
{
    return job->divisor > 1 ? job->postscale / (double)job->divisor : job->postscale;
}

static bool is_power_of_two(int64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

/* The average of float32: everything in float64, rounded once. */
static bool is_wide(const struct red_job *job)
{
    bool exact = is_power_of_two(job->divisor) && (job->nsrc < 3 || job->nsrc == 4);

    return job->src_type == HVD_F32 && job->dst_type == HVD_F32 && job->divisor > 1 && !exact;
}

static void ref_wide(const struct red_job *job, size_t i, void *out)
{
    volatile double acc = ref_load_float(job, 0, i) * job->prescale, next;
    float x;

    for (int r = 1; r < job->nsrc; r++) {
        next = ref_load_float(job, r, i) * job->prescale;
        acc = ref_combine_double(acc, next, job->op);
    }
    acc = acc * ref_post(job);
    x = isnan(acc) ? (float)NAN : (float)acc;
    memcpy(out, &x, 4);
}

static void ref_float(const struct red_job *job, size_t i, void *out)
{
    volatile float pre = (float)job->prescale, post = (float)ref_post(job);
    volatile float acc = ref_load_float(job, 0, i) * pre, next;
    uint16_t half;

    for (int r = 1; r < job->nsrc; r++) {
        next = ref_load_float(job, r, i) * pre;
        acc = ref_combine_float(acc, next, job->op);
    }
    acc = acc * post;
    if (isnan(acc))
        acc = (float)NAN;
    if (job->dst_type == HVD_F32) {
        memcpy(out, (const float *)&acc, 4);
        return;
    }
    half = ref_half_round(acc, job->dst_type == HVD_BF16);
    memcpy(out, &half, 2);
}

static void ref_double(const struct red_job *job, size_t i, void *out)
{
    volatile double acc = 0, next;
    double x;

    for (int r = 0; r < job->nsrc; r++) {
        memcpy(&x, (const char *)job->src[r] + 8 * i, 8);
        next = x * job->prescale;
        acc = r == 0 ? next : ref_combine_double(acc, next, job->op);
    }
    if (job->divisor > 1 && !is_power_of_two(job->divisor))
        acc = acc * job->postscale / (double)job->divisor;
    else
        acc = acc * ref_post(job);
    x = isnan(acc) ? (double)NAN : acc;
    memcpy(out, &x, 8);
}

static bool is_signed(enum hvd_dtype t)
{
    return t != HVD_U8 && t != HVD_U16;
}

/* The low bits of x as a number of the type. */
static int64_t ref_wrap(uint64_t x, enum hvd_dtype t)
{
    int bits = 8 * (int)hvd_dtype_bytes(t);
    uint64_t mask = bits == 64 ? UINT64_MAX : (1ULL << bits) - 1;

    x &= mask;
    if (is_signed(t) && bits < 64 && (x >> (bits - 1)) != 0)
        x |= ~mask;
    return (int64_t)x;
}

static int64_t ref_cut(double x, enum hvd_dtype t)
{
    int bits = 8 * (int)hvd_dtype_bytes(t);
    double above = ldexp(1.0, is_signed(t) ? bits - 1 : bits);
    double low = is_signed(t) ? -above : 0.0;

    if (isnan(x))
        return 0;
    if (x >= above)
        return is_signed(t) && bits == 64 ? INT64_MAX : (int64_t)(above - 1);
    return x < low ? (int64_t)low : (int64_t)x;
}

static int64_t ref_combine_int(int64_t a, int64_t b, enum hvd_dtype t, enum red_op op)
{
    switch (op) {
    case RED_SUM:
        return ref_wrap((uint64_t)a + (uint64_t)b, t);
    case RED_PROD:
        return ref_wrap((uint64_t)a * (uint64_t)b, t);
    case RED_MIN:
        return a < b ? a : b;
    default:
        return a > b ? a : b;
    }
}

static void ref_int(const struct red_job *job, size_t i, void *out)
{
    size_t bytes = hvd_dtype_bytes(job->src_type);
    int64_t acc = 0;

    for (int r = 0; r < job->nsrc; r++) {
        uint64_t raw = 0;
        int64_t x;

        memcpy(&raw, (const char *)job->src[r] + bytes * i, bytes);
        x = ref_wrap(raw, job->src_type);
        if (job->prescale != 1.0)
            x = ref_cut((double)x * job->prescale, job->src_type);
        acc = r == 0 ? x : ref_combine_int(acc, x, job->src_type, job->op);
    }
    if (job->divisor > 1 && job->postscale == 1.0)
        acc /= job->divisor;
    else if (ref_post(job) != 1.0)
        acc = ref_cut((double)acc * ref_post(job), job->src_type);
    memcpy(out, &acc, bytes);
}

static void ref_bool(const struct red_job *job, size_t i, void *out)
{
    bool any = false, all = true, result;

    for (int r = 0; r < job->nsrc; r++) {
        bool x = ((const unsigned char *)job->src[r])[i] != 0 && job->prescale != 0.0;

        any = any || x;
        all = all && x;
    }
    result = job->op == RED_SUM || job->op == RED_MAX ? any : all;
    *(unsigned char *)out = result && job->postscale != 0.0;
}

void ref_element(const struct red_job *job, size_t i, void *out)
{
    switch (job->src_type) {
    case HVD_F16:
    case HVD_BF16:
    case HVD_F32:
        (is_wide(job) ? ref_wide : ref_float)(job, i, out);
        break;
    case HVD_F64:
        ref_double(job, i, out);
        break;
    case HVD_BOOL:
        ref_bool(job, i, out);
        break;
    default:
        ref_int(job, i, out);
    }
}
