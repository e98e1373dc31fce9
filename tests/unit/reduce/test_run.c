/*
 * test_run.c: red_run against the reference, element by element and bit by bit, on every
 * instruction set of this machine, and that no byte beside the destinations changes.
 *
 * Each dtype x op x sources x length is run; misalignment, factors, in or out of place,
 * number of destinations and streaming are drawn by a fixed generator, so that all meet
 * all in the course of a run.
 */
#include "check.h"
#include "reference.h"

#include <stdlib.h>

#define SOURCES 16
#define LENGTH 4097
#define GUARD 64                        /* bytes before and after that must survive */
#define ROOM (LENGTH * 8 + 3 * GUARD)

static const char *const set_names[] = {"base", "avx2", "avx512", "neon"};
static const int source_counts[] = {1, 2, 3, 4, 5, 8, 16};
static const size_t lengths[] = {0, 1, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100,
                                 1000, 4097};

static uint64_t seed = 88172645463325252u;

static uint64_t draw(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static _Alignas(64) unsigned char in[SOURCES][ROOM], out[SOURCES][ROOM];
static _Alignas(64) unsigned char before[SOURCES][ROOM];

/* Bits of any value; every 16th float is one of the hard ones. */
static uint64_t draw_float(enum hvd_dtype t)
{
    static const uint64_t hard32[] = {0, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000,
                                      0x7f800001, 0xffffffff, 1, 0x007fffff, 0x7f7fffff};
    uint64_t bits = hard32[draw() % 10];
    double small = (double)(int64_t)(draw() % 2001) / 64.0 - 15.0;
    float as_float = (float)small;

    if (draw() % 16 != 0) {                     /* an ordinary number */
        if (t == HVD_F64)
            memcpy(&bits, &small, 8);
        else
            memcpy(&bits, &as_float, 4);
        if (t == HVD_F16)
            return ref_half_round(as_float, false);
        return t == HVD_BF16 ? bits >> 16 : bits;
    }
    if (draw() % 2 == 0)                        /* any bits at all */
        return draw();
    if (t == HVD_F64)
        return (bits >> 31) << 63 | (bits & 0x7fffffff) << 29 | (bits & 1);
    if (t == HVD_F16)
        return (bits >> 16 & 0x8000) | (bits >> 13 & 0x7c00) | (bits & 0x3ff);
    return t == HVD_BF16 ? bits >> 16 | (bits & 1) : bits;
}

static void fill(unsigned char *p, size_t count, enum hvd_dtype t)
{
    size_t bytes = hvd_dtype_bytes(t);
    bool is_float = t == HVD_F16 || t == HVD_BF16 || t == HVD_F32 || t == HVD_F64;

    for (size_t i = 0; i < count; i++) {
        uint64_t x = is_float ? draw_float(t) : draw();

        if (t == HVD_BOOL)
            x = x % 3 == 0 ? 0 : x >> 8;
        memcpy(p + i * bytes, &x, bytes);
    }
}

static void draw_factors(struct red_job *job)
{
    static const double factors[] = {0.5, 3.0, -1.25, 0.1, 0.0, 1e-3};

    job->prescale = job->postscale = 1.0;
    job->divisor = 0;
    switch (draw() % 6) {
    case 0:
        job->prescale = factors[draw() % 6];
        break;
    case 1:
        job->postscale = factors[draw() % 6];
        break;
    case 2:
        job->divisor = (int64_t)(draw() % 200);
        break;
    case 3:
        job->prescale = factors[draw() % 6];
        job->postscale = factors[draw() % 6];
        job->divisor = 3;
        break;
    }
}

struct drawn {
    const void *src[SOURCES];
    void *dst[SOURCES];
    struct red_job job;
};

/* Misaligned by elements or by bytes, alike or each in its own way. */
static size_t draw_offset(size_t bytes)
{
    switch (draw() % 4) {
    case 0:
        return GUARD;
    case 1:
        return GUARD + draw() % 8 * bytes;
    default:
        return GUARD + draw() % GUARD;
    }
}

static void draw_job(struct drawn *d, enum hvd_dtype from, enum hvd_dtype to,
                     enum red_op op, int nsrc, size_t count)
{
    bool in_place = from == to && draw() % 2 == 0;

    d->job = (struct red_job){.src = d->src, .nsrc = nsrc, .dst = d->dst, .count = count,
                              .src_type = from, .dst_type = to, .op = op,
                              .ndst = 1 + (int)(draw() % (unsigned)nsrc),
                              .stream = draw() % 3 == 0};
    draw_factors(&d->job);
    for (int r = 0; r < nsrc; r++) {
        d->src[r] = in[r] + draw_offset(hvd_dtype_bytes(from));
        fill((unsigned char *)d->src[r], count, from);
        d->dst[r] = out[r] + draw_offset(hvd_dtype_bytes(to));
        if (in_place)
            d->dst[r] = (void *)d->src[r];
    }
}

static void expect(const struct red_job *job, unsigned char *expected, size_t bytes)
{
    for (size_t i = 0; i < job->count; i++)
        ref_element(job, i, expected + i * bytes);
}

static void compare(const struct red_job *job, const unsigned char *expected, size_t bytes)
{
    for (int d = 0; d < job->ndst; d++) {
        const unsigned char *got = job->dst[d];

        for (size_t i = 0; i < job->count; i++) {
            uint64_t a = 0, b = 0;

            memcpy(&a, got + i * bytes, bytes);
            memcpy(&b, expected + i * bytes, bytes);
            if (a != b)
                check_fail(__FILE__, __LINE__,
                           "%s %s->%s op %d, %d sources, %zu of %zu, dst %d: %llx is "
                           "not %llx (pre %g post %g div %lld stream %d)",
                           red_isa(), hvd_dtype_name(job->src_type),
                           hvd_dtype_name(job->dst_type), job->op, job->nsrc, i,
                           job->count, d, (unsigned long long)a, (unsigned long long)b,
                           job->prescale, job->postscale, (long long)job->divisor,
                           job->stream);
        }
    }
}

/* Puts the destinations back to what they were and compares all of it. */
static void check_rest(const struct red_job *job, size_t bytes)
{
    bool in_place = job->dst[0] == job->src[0];

    for (int d = 0; d < job->ndst; d++) {
        unsigned char *whole = in_place ? in[d] : out[d];
        size_t offset = (size_t)((unsigned char *)job->dst[d] - whole);

        if (memcmp(whole, before[d], offset) != 0 ||
            memcmp(whole + offset + job->count * bytes,
                   before[d] + offset + job->count * bytes,
                   ROOM - offset - job->count * bytes) != 0)
            check_fail(__FILE__, __LINE__, "%s wrote beside destination %d", red_isa(), d);
    }
}

/* The same job on every set; in place each needs the sources back. */
static void run_on_all(const struct drawn *d)
{
    static unsigned char expected[ROOM], sources[SOURCES][ROOM];
    const struct red_job *job = &d->job;
    size_t bytes = hvd_dtype_bytes(job->dst_type);
    bool in_place = job->dst[0] == job->src[0];
    size_t used = job->count * 8 + 3 * GUARD;

    expect(job, expected, bytes);
    for (int r = 0; r < job->nsrc; r++) {
        memcpy(sources[r], in[r], used);
        memcpy(before[r], in_place ? in[r] : out[r], ROOM);
    }
    for (size_t s = 0; s < sizeof(set_names) / sizeof(set_names[0]); s++) {
        if (!red_force_isa(set_names[s]))
            continue;
        red_run(job);
        compare(job, expected, bytes);
        check_rest(job, bytes);
        for (int r = 0; r < job->nsrc; r++)
            memcpy(in[r], sources[r], used);
    }
}

static void run_type(enum hvd_dtype from, enum hvd_dtype to)
{
    struct drawn d;

    for (int op = 0; op < RED_OP_COUNT; op++)
        for (size_t r = 0; r < sizeof(source_counts) / sizeof(int); r++)
            for (size_t n = 0; n < sizeof(lengths) / sizeof(size_t); n++) {
                int rounds = lengths[n] <= 100 ? 6 : 1;

                for (int k = 0; k < rounds; k++) {
                    draw_job(&d, from, to, op, source_counts[r], lengths[n]);
                    run_on_all(&d);
                }
            }
}

TEST(sets_of_this_machine)
{
    for (size_t s = 0; s < sizeof(set_names) / sizeof(set_names[0]); s++)
        printf("  %s: %s\n", set_names[s],
               red_force_isa(set_names[s]) ? "tested" : "this CPU cannot");
    CHECK(!red_force_isa("sse9"));
}

TEST(can_all)
{
    for (int t = 0; t < HVD_DTYPE_COUNT; t++)
        for (int op = 0; op < RED_OP_COUNT; op++)
            CHECK(red_can(t, op));
    CHECK(!red_can(HVD_DTYPE_COUNT, RED_SUM));
    CHECK(!red_can(HVD_F32, RED_OP_COUNT));
}

TEST(uint8) { run_type(HVD_U8, HVD_U8); }
TEST(int8) { run_type(HVD_I8, HVD_I8); }
TEST(uint16) { run_type(HVD_U16, HVD_U16); }
TEST(int16) { run_type(HVD_I16, HVD_I16); }
TEST(int32) { run_type(HVD_I32, HVD_I32); }
TEST(int64) { run_type(HVD_I64, HVD_I64); }
TEST(float16) { run_type(HVD_F16, HVD_F16); }
TEST(bfloat16) { run_type(HVD_BF16, HVD_BF16); }
TEST(float32) { run_type(HVD_F32, HVD_F32); }
TEST(float64) { run_type(HVD_F64, HVD_F64); }
TEST(booleans) { run_type(HVD_BOOL, HVD_BOOL); }
TEST(float16_partial) { run_type(HVD_F16, HVD_F32); }
TEST(float16_final) { run_type(HVD_F32, HVD_F16); }
TEST(bfloat16_partial) { run_type(HVD_BF16, HVD_F32); }
TEST(bfloat16_final) { run_type(HVD_F32, HVD_BF16); }
