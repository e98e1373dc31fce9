/*
 * test_rules.c: the rules a user can see: every 16-bit float, averages of integers, NaN,
 * the thread's modes, neutral elements, Adasum, copies.  On every set of this machine.
 */
#include "check.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const set_names[] = {"base", "avx2", "avx512", "neon"};

#define EACH_SET(s)                                                                    \
    for (size_t s = 0; s < sizeof(set_names) / sizeof(set_names[0]); s++)              \
        if (red_force_isa(set_names[s]))

static void run(const void *const *src, int nsrc, void *dst, size_t count,
                enum hvd_dtype from, enum hvd_dtype to, enum red_op op)
{
    struct red_job job = {.src = src, .nsrc = nsrc, .dst = &dst, .ndst = 1,
                          .count = count, .src_type = from, .dst_type = to, .op = op,
                          .prescale = 1.0, .postscale = 1.0};

    red_run(&job);
}

static void convert(const void *src, enum hvd_dtype from, void *dst, enum hvd_dtype to,
                    size_t count)
{
    run(&src, 1, dst, count, from, to, RED_SUM);
}

static uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, 4);
    return bits;
}

/* ---- 16-bit floats --------------------------------------------------------------- */

#define HALVES 65536

static void check_every_half(enum hvd_dtype type)
{
    static uint16_t half[HALVES], back[HALVES];
    static float wide[HALVES];
    bool brain = type == HVD_BF16;

    for (int i = 0; i < HALVES; i++)
        half[i] = (uint16_t)i;
    convert(half, type, wide, HVD_F32, HALVES);
    convert(wide, HVD_F32, back, type, HALVES);
    for (int i = 0; i < HALVES; i++) {
        float expected = (float)ref_half_value(half[i], brain);

        if (isnan(expected)) {
            CHECK_EQ(bits_of(wide[i]), 0x7fc00000u);
            CHECK_EQ(back[i], brain ? 0x7fc0 : 0x7e00);
        } else {
            CHECK_EQ(bits_of(wide[i]), bits_of(expected));
            CHECK_EQ(back[i], half[i]);
        }
    }
}

/* At, just below and just above each number, and each middle between two of them. */
static void check_every_rounding(enum hvd_dtype type)
{
    static float x[HALVES];
    static uint16_t got[HALVES];
    bool brain = type == HVD_BF16;

    for (int direction = -2; direction <= 2; direction++) {
        for (int i = 0; i < HALVES; i++) {
            double a = ref_half_value((uint16_t)i, brain);
            double b = ref_half_value((uint16_t)(i + 1), brain);

            x[i] = direction % 2 == 0 ? (float)((a + b) / 2) : (float)a;
            if (direction != 0)
                x[i] = nextafterf(x[i], direction < 0 ? -INFINITY : INFINITY);
        }
        convert(x, HVD_F32, got, type, HALVES);
        for (int i = 0; i < HALVES; i++)
            CHECK_EQ(got[i], ref_half_round(x[i], brain));
    }
}

TEST(every_float16)
{
    EACH_SET(s) check_every_half(HVD_F16);
}

TEST(every_bfloat16)
{
    EACH_SET(s) check_every_half(HVD_BF16);
}

TEST(every_rounding_to_float16)
{
    EACH_SET(s) check_every_rounding(HVD_F16);
}

TEST(every_rounding_to_bfloat16)
{
    EACH_SET(s) check_every_rounding(HVD_BF16);
}

TEST(reference_knows_some_numbers)
{
    CHECK_EQ(ref_half_value(0x3c00, false), 1.0);
    CHECK_EQ(ref_half_value(0x0001, false), ldexp(1.0, -24));
    CHECK_EQ(ref_half_value(0x7bff, false), 65504.0);
    CHECK_EQ(ref_half_value(0xc049, true), -3.140625);
    CHECK_EQ(ref_half_round(65519.99, false), 0x7bff);
    CHECK_EQ(ref_half_round(65520.0, false), 0x7c00);
    CHECK_EQ(ref_half_round(ldexp(1.0, -25), false), 0);
    CHECK_EQ(ref_half_round(ldexp(1.5, -25), false), 1);
    CHECK_EQ(ref_half_round(1.00390625, true), 0x3f80);
    CHECK_EQ(ref_half_round(-1.01171875, true), 0xbf82);
}

/* 2048 + 1 + 1 is 2050 when rounded once and 2048 when rounded after each addition. */
TEST(float16_sum_is_rounded_once)
{
    uint16_t big = 0x6800, one = 0x3c00, got;
    const void *src[] = {&big, &one, &one};

    EACH_SET(s) {
        run(src, 3, &got, 1, HVD_F16, HVD_F16, RED_SUM);
        CHECK_EQ(got, 0x6801);
    }
}

TEST(float16_overflow_is_infinity)
{
    uint16_t most = 0x7bff, got;
    const void *src[] = {&most, &most};

    EACH_SET(s) {
        run(src, 2, &got, 1, HVD_F16, HVD_F16, RED_SUM);
        CHECK_EQ(got, 0x7c00);
    }
}

/* ---- Integers -------------------------------------------------------------------- */

/* Equal inputs of N ranks come back unchanged; 1/49 as a float64 would lose one. */
TEST(average_of_equal_integers_is_exact)
{
    static const int sizes[] = {2, 3, 49, 98, 103, 107, 161, 1000};

    EACH_SET(s)
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        int64_t wide[40], got_wide[40];
        int32_t word[40], got[40];
        const void *src64[1000], *src32[1000];
        void *dst64 = got_wide, *dst32 = got;
        struct red_job job = {.nsrc = sizes[k], .ndst = 1, .count = 40, .op = RED_SUM,
                              .prescale = 1.0, .postscale = 1.0, .divisor = sizes[k]};

        for (int i = 0; i < 40; i++) {
            wide[i] = (int64_t)(i - 20) * 9007199254741;
            word[i] = (i - 20) * 100003;
        }
        for (int r = 0; r < sizes[k]; r++) {
            src64[r] = wide;
            src32[r] = word;
        }
        job.src = src64;
        job.dst = &dst64;
        job.src_type = job.dst_type = HVD_I64;
        red_run(&job);
        job.src = src32;
        job.dst = &dst32;
        job.src_type = job.dst_type = HVD_I32;
        red_run(&job);
        for (int i = 0; i < 40; i++) {
            CHECK_EQ(got_wide[i], wide[i]);
            CHECK_EQ(got[i], word[i]);
        }
    }
}

/* Equal inputs of N ranks come back unchanged, for every type that is narrower than its
 * sum; multiplying by 1/N would change a third of them. */
TEST(average_of_equal_floats_is_exact)
{
    static const enum hvd_dtype types[] = {HVD_F32, HVD_F16, HVD_BF16};

    EACH_SET(s)
    for (size_t k = 0; k < sizeof(types) / sizeof(types[0]); k++)
        for (int n = 2; n <= 64; n++) {
            float in[100], got[100] = {0};
            size_t bytes = hvd_dtype_bytes(types[k]), count = sizeof in / bytes;
            const void *src[64];
            void *dst = got;
            struct red_job job = {.src = src, .nsrc = n, .dst = &dst, .ndst = 1,
                                  .count = count, .src_type = types[k],
                                  .dst_type = types[k], .op = RED_SUM, .prescale = 1.0,
                                  .postscale = 1.0, .divisor = n};

            for (size_t i = 0; i < count; i++)
                if (types[k] == HVD_F32)
                    in[i] = (float)(1.0 + i * 0.7391) / (float)(i % 7 + 1);
                else
                    ((uint16_t *)in)[i] = ref_half_round(0.3 + 0.017 * (double)i,
                                                         types[k] == HVD_BF16);
            for (int r = 0; r < n; r++)
                src[r] = in;
            red_run(&job);
            CHECK_EQ(memcmp(got, in, sizeof in), 0);
        }
}

TEST(integer_average_is_cut_towards_zero)
{
    int32_t a[] = {-2, 2, INT32_MAX, INT32_MIN, 7}, b[] = {-1, 1, 0, 0, -7}, got[5];
    const void *src[] = {a, b};
    void *dst = got;
    struct red_job job = {.src = src, .nsrc = 2, .dst = &dst, .ndst = 1, .count = 5,
                          .src_type = HVD_I32, .dst_type = HVD_I32, .op = RED_SUM,
                          .prescale = 1.0, .postscale = 1.0, .divisor = 2};

    EACH_SET(s) {
        red_run(&job);
        CHECK_EQ(got[0], -1);
        CHECK_EQ(got[1], 1);
        CHECK_EQ(got[2], INT32_MAX / 2);
        CHECK_EQ(got[3], INT32_MIN / 2);
        CHECK_EQ(got[4], 0);
    }
}

TEST(integer_prescale_is_cut_before_the_sum)
{
    int32_t a = 5, b = -5, c = 3, got;
    const void *src[] = {&a, &b, &c};
    void *dst = &got;
    struct red_job job = {.src = src, .nsrc = 3, .dst = &dst, .ndst = 1, .count = 1,
                          .src_type = HVD_I32, .dst_type = HVD_I32, .op = RED_SUM,
                          .prescale = 0.5, .postscale = 1.0};

    EACH_SET(s) {
        red_run(&job);
        CHECK_EQ(got, 1);
    }
}

TEST(scaling_stops_at_the_end_of_the_range)
{
    int64_t most[] = {INT64_MAX, INT64_MIN, 1};
    int8_t byte[] = {100, -100, 1};
    uint8_t natural[] = {200, 1, 0};

    EACH_SET(s) {
        int64_t a[3];
        int8_t b[3];
        uint8_t c[3];

        memcpy(a, most, sizeof(a));
        memcpy(b, byte, sizeof(b));
        memcpy(c, natural, sizeof(c));
        red_scale(a, 3, HVD_I64, 4.0);
        red_scale(b, 3, HVD_I8, 2.0);
        red_scale(c, 3, HVD_U8, -2.0);
        CHECK_EQ(a[0], INT64_MAX);
        CHECK_EQ(a[1], INT64_MIN);
        CHECK_EQ(a[2], 4);
        CHECK_EQ(b[0], 127);
        CHECK_EQ(b[1], -128);
        CHECK_EQ(b[2], 2);
        CHECK_EQ(c[0], 0);
        CHECK_EQ(c[2], 0);
        red_scale(b, 3, HVD_I8, NAN);
        CHECK_EQ(b[0], 0);
    }
}

/* ---- NaN and zeros --------------------------------------------------------------- */

/* One of three sources holds a NaN of one kind: the result is the one NaN, everywhere
 * in the vector, for each operation. */
TEST(nan_is_handed_on_by_every_operation)
{
    static const uint32_t kinds[] = {0x7fc00000, 0xffc00000, 0x7f800001, 0xffffffff};
    float x[3][67], got[67];
    const void *src[] = {x[0], x[1], x[2]};

    EACH_SET(s)
    for (int op = 0; op < RED_OP_COUNT; op++)
        for (int where = 0; where < 3 * 67; where++) {
            for (int i = 0; i < 3 * 67; i++)
                x[i / 67][i % 67] = (float)(i % 7 - 3);
            memcpy(&x[where / 67][where % 67], &kinds[where % 4], 4);
            run(src, 3, got, 67, HVD_F32, HVD_F32, op);
            for (int i = 0; i < 67; i++)
                if (i == where % 67)
                    CHECK_EQ(bits_of(got[i]), 0x7fc00000u);
                else
                    CHECK(!isnan(got[i]));
        }
}

TEST(infinities_that_cancel_are_the_one_nan)
{
    double a = INFINITY, b = -INFINITY, got;
    const void *src[] = {&a, &b};
    uint64_t bits;

    EACH_SET(s) {
        run(src, 2, &got, 1, HVD_F64, HVD_F64, RED_SUM);
        memcpy(&bits, &got, 8);
        CHECK_EQ(bits, 0x7ff8000000000000u);
    }
}

TEST(of_equal_zeros_the_last_one_stays)
{
    float plus = 0.0f, minus = -0.0f, got;
    const void *src[] = {&plus, &minus}, *other[] = {&minus, &plus};

    EACH_SET(s)
    for (int op = RED_MIN; op <= RED_MAX; op++) {
        run(src, 2, &got, 1, HVD_F32, HVD_F32, op);
        CHECK_EQ(bits_of(got), 0x80000000u);
        run(other, 2, &got, 1, HVD_F32, HVD_F32, op);
        CHECK_EQ(bits_of(got), 0u);
    }
}

/* ---- Modes of the thread --------------------------------------------------------- */

#if defined(__x86_64__)
#include <immintrin.h>

/* As torch.set_flush_denormal(True), and rounding upwards. */
TEST(modes_of_the_thread_do_not_show)
{
    float a[] = {0x1p-149f, 1.0f, 0x1p-127f}, b[] = {0x1p-149f, 0x1p-24f, 0x1p-128f};
    float got[3], expected[3];
    const void *src[] = {a, b};
    unsigned modes = _mm_getcsr() & ~0x3fu;
    double dot, na, nb;

    for (int i = 0; i < 3; i++)
        expected[i] = a[i] + b[i];
    EACH_SET(s) {
        _mm_setcsr(0x1f80 | 0x8040 | _MM_ROUND_UP);
        run(src, 2, got, 3, HVD_F32, HVD_F32, RED_SUM);
        red_dots(a, b, 3, HVD_F32, &dot, &na, &nb);
        CHECK_EQ(_mm_getcsr() & ~0x3fu, 0x1f80u | 0x8040 | _MM_ROUND_UP);
        _mm_setcsr(modes);
        CHECK_EQ(memcmp(got, expected, sizeof(got)), 0);
        CHECK_EQ(na, 1.0);
    }
}
#endif

/* ---- Neutral elements ------------------------------------------------------------ */

static const unsigned char samples[][8] = {
    {0}, {1}, {0, 0x80}, {0, 0, 0, 0x80}, {0, 0, 0, 0, 0, 0, 0, 0x80}, {0xff, 0x7b},
    {0x12, 0x34, 0x56, 0x41, 0x9a, 0xbc, 0xde, 0x3f}, {0x80}, {0x7f, 0x7b, 0x7f, 0x7b},
};

TEST(neutral_elements_change_nothing)
{
    EACH_SET(s)
    for (int t = 0; t < HVD_DTYPE_COUNT; t++)
        for (int op = 0; op < RED_OP_COUNT; op++)
            for (size_t k = 0; k < sizeof(samples) / sizeof(samples[0]); k++) {
                size_t bytes = hvd_dtype_bytes(t);
                unsigned char x[8], neutral[8 * 5], got[8];
                const void *left[] = {neutral + 4 * bytes, x};
                const void *right[] = {x, neutral};

                memcpy(x, samples[k], 8);
                if (t == HVD_BOOL)
                    x[0] = x[0] != 0;
                red_fill_neutral(neutral, 5, t, op);
                run(left, 2, got, 1, t, t, op);
                CHECK_EQ(memcmp(got, x, bytes), 0);
                run(right, 2, got, 1, t, t, op);
                CHECK_EQ(memcmp(got, x, bytes), 0);
            }
}

/* ---- Adasum ---------------------------------------------------------------------- */

/* The order that reduce.h promises, written out. */
static double dots_in_order(const float *a, const float *b, size_t count)
{
    volatile double lane[8] = {0};

    for (size_t i = 0; i < count; i++) {
        volatile double product = (double)a[i] * (double)b[i];

        lane[i % 8] = lane[i % 8] + product;
    }
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static void fill_pair(float *a, float *b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        a[i] = sinf((float)i * 0.7f) * 1e-3f;
        b[i] = cosf((float)i * 1.3f) * 1e3f;
    }
}

TEST(dots_have_one_order)
{
    static float a[4097], b[4097];
    static const size_t counts[] = {0, 1, 7, 8, 9, 511, 512, 513, 4097};
    double dot, na, nb;

    fill_pair(a, b, 4097);
    EACH_SET(s)
    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        red_dots(a, b, counts[k], HVD_F32, &dot, &na, &nb);
        CHECK_EQ(dot, dots_in_order(a, b, counts[k]));
        CHECK_EQ(na, dots_in_order(a, a, counts[k]));
        CHECK_EQ(nb, dots_in_order(b, b, counts[k]));
    }
}

TEST(dots_of_every_type_agree_with_float32)
{
    static float a[1001], b[1001], wide_a[1001], wide_b[1001];
    static double da[1001], db[1001];
    static uint16_t ha[1001], hb[1001];
    double dot, na, nb;

    fill_pair(a, b, 1001);
    for (int i = 0; i < 1001; i++) {
        da[i] = a[i];
        db[i] = b[i];
    }
    EACH_SET(s) {
        red_dots(da, db, 1001, HVD_F64, &dot, &na, &nb);
        CHECK_EQ(dot, dots_in_order(a, b, 1001));
        CHECK_EQ(nb, dots_in_order(b, b, 1001));
        for (int half = 0; half < 2; half++) {
            enum hvd_dtype type = half ? HVD_F16 : HVD_BF16;

            convert(a, HVD_F32, ha, type, 1001);
            convert(b, HVD_F32, hb, type, 1001);
            convert(ha, type, wide_a, HVD_F32, 1001);
            convert(hb, type, wide_b, HVD_F32, 1001);
            red_dots(ha, hb, 1001, type, &dot, &na, &nb);
            CHECK_EQ(dot, dots_in_order(wide_a, wide_b, 1001));
            CHECK_EQ(na, dots_in_order(wide_a, wide_a, 1001));
        }
    }
}

TEST(combine_is_in_float64_and_rounded_once)
{
    static float a[1001], b[1001], got[1001], half_as_float[1001];
    static uint16_t ha[1001], hb[1001];

    EACH_SET(s) {
        fill_pair(a, b, 1001);
        red_combine(got, a, 0.3, b, -0.7, 1001, HVD_F32);
        for (int i = 0; i < 1001; i++) {
            volatile double x = 0.3 * (double)a[i], y = -0.7 * (double)b[i];

            CHECK_EQ(bits_of(got[i]), bits_of((float)(x + y)));
        }
        convert(a, HVD_F32, ha, HVD_F16, 1001);
        convert(b, HVD_F32, hb, HVD_F16, 1001);
        convert(ha, HVD_F16, a, HVD_F32, 1001);
        convert(hb, HVD_F16, b, HVD_F32, 1001);
        red_combine(half_as_float, a, 0.3, b, -0.7, 1001, HVD_F32);
        red_combine(ha, ha, 0.3, hb, -0.7, 1001, HVD_F16);
        for (int i = 0; i < 1001; i++)
            CHECK_EQ(ha[i], ref_half_round(half_as_float[i], false));
    }
}

TEST(combine_in_place_of_float64)
{
    double a[9], b[9];

    EACH_SET(s) {
        for (int i = 0; i < 9; i++) {
            a[i] = i;
            b[i] = 2 * i;
        }
        red_combine(a, a, 0.5, b, 0.25, 9, HVD_F64);
        for (int i = 0; i < 9; i++)
            CHECK_EQ(a[i], (double)i);
    }
}

/* ---- Scale and copy -------------------------------------------------------------- */

TEST(scale_of_float16_is_rounded_once)
{
    uint16_t x[19];

    EACH_SET(s) {
        for (int i = 0; i < 19; i++)
            x[i] = ref_half_round(i * 0.37, false);
        red_scale(x, 19, HVD_F16, 0.1);
        for (int i = 0; i < 19; i++) {
            volatile float wide = (float)ref_half_value(ref_half_round(i * 0.37, false), false);

            wide = wide * 0.1f;
            CHECK_EQ(x[i], ref_half_round(wide, false));
        }
    }
}

static void check_copy(unsigned char *dst, const unsigned char *src, size_t bytes)
{
    for (int large = 0; large < 2; large++) {
        memset(dst - 1, 0xa5, bytes + 2);
        red_copy_part(dst, src, bytes, large ? SIZE_MAX : 0);
        CHECK_EQ(memcmp(dst, src, bytes), 0);
        CHECK_EQ(dst[-1], 0xa5);
        CHECK_EQ(dst[bytes], 0xa5);
    }
}

/* A part of something larger than any cache takes the streaming way. */
TEST(copy_within_and_past_the_cache)
{
    static unsigned char src[300000], dst[300000];

    for (size_t i = 0; i < sizeof src; i++)
        src[i] = (unsigned char)(i * 2654435761u >> 13);
    EACH_SET(s) {
        for (size_t bytes = 0; bytes < 700; bytes++)
            check_copy(dst + 1 + bytes % 67, src + bytes % 13, bytes);
        check_copy(dst + 3, src + 1, 4096);
        check_copy(dst + 5, src + 2, 299001);
        check_copy(dst + 64, src + 7, 262144);
    }
}

TEST(the_last_cache_is_at_least_that_of_a_small_cpu)
{
    long told = sysconf(_SC_LEVEL3_CACHE_SIZE);

    CHECK(red_cache_bytes() >= (size_t)256 << 10);
    CHECK(told <= 0 || red_cache_bytes() <= (size_t)told);
}
