/*
 * dispatch.c: chooses the instruction set once, decides the factors of a job, and sees
 * to it that the calling thread computes by the rules of reduce_int.h: users may have
 * told their threads to flush subnormal numbers or to round otherwise, and any thread
 * may be the one that makes the progress of a collective.
 */
#include "base/error.h"
#include "reduce/reduce_int.h"

#include <stdatomic.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

/* What the kernel saves of a thread when it runs another (register XCR0). */
#define SAVES_AVX 0x06ULL
#define SAVES_AVX512 0xe6ULL

/* ---- Choice of the set ----------------------------------------------------------- */

#if defined(__x86_64__)
/* By hand: __builtin_cpu_supports wants a symbol of libgcc, which not every linker has. */
__attribute__((target("xsave"))) static uint64_t saved_registers(void)
{
    unsigned a, b, c, d;

    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0)
        return 0;
    return _xgetbv(0);
}

static bool can_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

/* Bits of leaf 7, which lists the newer instructions. */
static bool has_newer(unsigned wanted)
{
    unsigned a, b, c, d;

    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & wanted) == wanted;
}

static bool can_avx2(void)
{
    return (saved_registers() & SAVES_AVX) == SAVES_AVX && has_newer(bit_AVX2) &&
           can_f16c();
}
#endif

#if defined(RED_AVX512)
static bool can_avx512(void)
{
    return can_avx2() && (saved_registers() & SAVES_AVX512) == SAVES_AVX512 &&
           has_newer(bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL);
}
#endif

#if !defined(__aarch64__)
static bool can_base(void)
{
    return true;
}
#else
static bool can_neon(void)
{
    return true;
}
#endif

/* The best first; the last one runs everywhere. */
static const struct red_set {
    const struct red_table *table;
    bool (*can)(void);
} sets[] = {
#if defined(__aarch64__)
    {&red_table_neon, can_neon},
#else
#if defined(RED_AVX512)
    {&red_table_avx512, can_avx512},
#endif
#if defined(__x86_64__)
    {&red_table_avx2, can_avx2},
#endif
    {&red_table_base, can_base},
#endif
};

static _Atomic(const struct red_table *) chosen;

static const struct red_table *table_get(void)
{
    const struct red_table *table = atomic_load_explicit(&chosen, memory_order_relaxed);
    size_t i = 0;

    if (__builtin_expect(table != NULL, 1))
        return table;
    while (!sets[i].can())
        i++;
    atomic_store_explicit(&chosen, sets[i].table, memory_order_relaxed);
    return sets[i].table;
}

const char *red_isa(void)
{
    return table_get()->name;
}

bool red_force_isa(const char *name)
{
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
        if (strcmp(sets[i].table->name, name) == 0 && sets[i].can()) {
            atomic_store_explicit(&chosen, sets[i].table, memory_order_relaxed);
            return true;
        }
    }
    return false;
}

/* ---- Modes of the thread --------------------------------------------------------- */

#if defined(__x86_64__)
#define MODES_DEFAULT 0x1f80u           /* all masked, to nearest, subnormals kept */
#define MODES_STATUS 0x3fu              /* flags of what happened, not modes */

static unsigned modes_enter(void)
{
    unsigned modes = _mm_getcsr();

    if (__builtin_expect((modes & ~MODES_STATUS) != MODES_DEFAULT, 0))
        _mm_setcsr(MODES_DEFAULT);
    return modes;
}

static void modes_leave(unsigned modes)
{
    if (__builtin_expect((modes & ~MODES_STATUS) != MODES_DEFAULT, 0))
        _mm_setcsr(modes);
}
#elif defined(__aarch64__)
static unsigned modes_enter(void)
{
    unsigned long modes;

    __asm__ volatile("mrs %0, fpcr" : "=r"(modes));
    if (__builtin_expect(modes != 0, 0))
        __asm__ volatile("msr fpcr, %0" : : "r"(0ul));
    return (unsigned)modes;
}

static void modes_leave(unsigned modes)
{
    if (__builtin_expect(modes != 0, 0))
        __asm__ volatile("msr fpcr, %0" : : "r"((unsigned long)modes));
}
#else
static unsigned modes_enter(void)
{
    return 0;
}

static void modes_leave(unsigned modes)
{
}
#endif

/* ---- Reductions ------------------------------------------------------------------ */

static bool is_float(enum hvd_dtype dtype)
{
    return dtype == HVD_F16 || dtype == HVD_BF16 || dtype == HVD_F32 ||
           dtype == HVD_F64;
}

static bool is_power_of_two(int64_t n)
{
    return (n & (n - 1)) == 0;
}

/* Averages of float32 are added in float64, so that equal inputs come back unchanged.  The
 * sums of two and of four equal numbers are exact without that. */
static bool is_wide(const struct red_job *job)
{
    return job->src_type == HVD_F32 && job->dst_type == HVD_F32 && job->divisor > 1 &&
           !(is_power_of_two(job->divisor) && (job->nsrc <= 2 || job->nsrc == 4));
}

static int kind_of(enum hvd_dtype from, enum hvd_dtype to)
{
    if (from == to)
        return (int)from;
    if (to == HVD_F32)
        return from == HVD_F16 ? RED_KIND_F16_F32 : RED_KIND_BF16_F32;
    return to == HVD_F16 ? RED_KIND_F32_F16 : RED_KIND_F32_BF16;
}

static bool can_change(enum hvd_dtype from, enum hvd_dtype to)
{
    bool from_half = from == HVD_F16 || from == HVD_BF16;
    bool to_half = to == HVD_F16 || to == HVD_BF16;

    return from == to || (from_half && to == HVD_F32) || (from == HVD_F32 && to_half);
}

bool red_can(enum hvd_dtype dtype, enum red_op op)
{
    return (unsigned)dtype < HVD_DTYPE_COUNT && (unsigned)op < RED_OP_COUNT;
}

/* Where the accumulator is wider than the result, a factor rounds to what a division does;
 * float64 has no wider one. */
static void divide(struct red_pass *pass, const struct red_job *job)
{
    if (job->divisor <= 1)
        return;
    if (!is_float(job->src_type) && job->postscale == 1.0)
        pass->divisor = job->divisor;
    else if (job->src_type == HVD_F64 && !is_power_of_two(job->divisor))
        pass->over = (double)job->divisor;
    else
        pass->post = job->postscale / (double)job->divisor;
}

void red_run(const struct red_job *job)
{
    struct red_pass pass = {
        .src = job->src, .nsrc = job->nsrc, .dst = job->dst, .ndst = job->ndst,
        .count = job->count, .pre = job->prescale, .post = job->postscale, .over = 1.0,
        .stream = job->stream,
    };
    int kind = is_wide(job) ? RED_KIND_F32_WIDE : kind_of(job->src_type, job->dst_type);
    unsigned modes;

    BUG_ON(!red_can(job->src_type, job->op) || job->nsrc < 1);
    BUG_ON(!can_change(job->src_type, job->dst_type));
    if (job->count == 0 || job->ndst == 0)
        return;
    divide(&pass, job);
    modes = modes_enter();
    table_get()->fn[kind][job->op](&pass);
    modes_leave(modes);
}

void red_scale(void *data, size_t count, enum hvd_dtype dtype, double factor)
{
    const void *src = data;
    struct red_job job = {
        .src = &src, .nsrc = 1, .dst = &data, .ndst = 1, .count = count,
        .src_type = dtype, .dst_type = dtype, .op = RED_SUM,
        .prescale = factor, .postscale = 1.0,
    };

    if (factor != 1.0)
        red_run(&job);
}

/* ---- Adasum ---------------------------------------------------------------------- */

#define WIDE 512                        /* 16-bit elements widened at a time, in L1 */

static void widen(float *to, const uint16_t *from, size_t count, enum hvd_dtype dtype)
{
    const void *src = from;
    void *dst = to;
    struct red_pass pass = {.src = &src, .nsrc = 1, .dst = &dst, .ndst = 1,
                            .count = count, .pre = 1.0, .post = 1.0, .over = 1.0};

    table_get()->fn[kind_of(dtype, HVD_F32)][RED_SUM](&pass);
}

static void narrow(uint16_t *to, const float *from, size_t count, enum hvd_dtype dtype)
{
    const void *src = from;
    void *dst = to;
    struct red_pass pass = {.src = &src, .nsrc = 1, .dst = &dst, .ndst = 1,
                            .count = count, .pre = 1.0, .post = 1.0, .over = 1.0};

    table_get()->fn[kind_of(HVD_F32, dtype)][RED_SUM](&pass);
}

static size_t block(size_t count, size_t i)
{
    return count - i < WIDE ? count - i : WIDE;
}

static void dots_half(struct red_dots_state *state, const uint16_t *a,
                      const uint16_t *b, size_t count, enum hvd_dtype dtype)
{
    _Alignas(64) float x[WIDE], y[WIDE];

    for (size_t i = 0; i < count; i += WIDE) {
        size_t n = block(count, i);

        widen(x, a + i, n, dtype);
        widen(y, b + i, n, dtype);
        table_get()->dots_f32(state, x, y, n);
    }
}

static double lanes_sum(const double *lane)
{
    double sum = ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
                 ((lane[1] + lane[5]) + (lane[3] + lane[7]));

    return sum == sum ? sum : __builtin_nan("");
}

void red_dots(const void *a, const void *b, size_t count, enum hvd_dtype dtype,
              double *dot, double *na, double *nb)
{
    struct red_dots_state state = {.dot = {0}};
    unsigned modes = modes_enter();

    BUG_ON(!is_float(dtype));
    if (dtype == HVD_F32)
        table_get()->dots_f32(&state, a, b, count);
    else if (dtype == HVD_F64)
        table_get()->dots_f64(&state, a, b, count);
    else
        dots_half(&state, a, b, count, dtype);
    *dot = lanes_sum(state.dot);
    *na = lanes_sum(state.na);
    *nb = lanes_sum(state.nb);
    modes_leave(modes);
}

static void combine_half(uint16_t *dst, const uint16_t *a, double ca, const uint16_t *b,
                         double cb, size_t count, enum hvd_dtype dtype)
{
    _Alignas(64) float x[WIDE], y[WIDE];

    for (size_t i = 0; i < count; i += WIDE) {
        size_t n = block(count, i);

        widen(x, a + i, n, dtype);
        widen(y, b + i, n, dtype);
        table_get()->combine_f32(x, x, ca, y, cb, n);
        narrow(dst + i, x, n, dtype);
    }
}

void red_combine(void *dst, const void *a, double ca, const void *b, double cb,
                 size_t count, enum hvd_dtype dtype)
{
    unsigned modes = modes_enter();

    BUG_ON(!is_float(dtype));
    if (dtype == HVD_F32)
        table_get()->combine_f32(dst, a, ca, b, cb, count);
    else if (dtype == HVD_F64)
        table_get()->combine_f64(dst, a, ca, b, cb, count);
    else
        combine_half(dst, a, ca, b, cb, count, dtype);
    modes_leave(modes);
}

/* ---- Copy ------------------------------------------------------------------------ */

void red_copy_part(void *dst, const void *src, size_t bytes, size_t all)
{
    if (all > red_cache_bytes())
        table_get()->copy_stream(dst, src, bytes);
    else if (bytes > 0)
        memcpy(dst, src, bytes);
}

void red_copy(void *dst, const void *src, size_t bytes)
{
    red_copy_part(dst, src, bytes, 2 * bytes);
}
