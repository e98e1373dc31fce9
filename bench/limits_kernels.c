/* limits_kernels.c: see limits_kernels.h. */
#include "limits_kernels.h"

#include <string.h>

typedef float vector __attribute__((vector_size(32)));

#define W 8                             /* floats of a vector */

#if defined(__AVX2__)
#include <immintrin.h>
#define STREAM(at, v) _mm256_stream_ps(at, (__m256)(v))
#define STREAM_END() _mm_sfence()
#else
#define STREAM(at, v) (*(vector *)(at) = (v))
#define STREAM_END() ((void)0)
#endif

static inline vector load(const float *at)
{
    return *(const vector *)at;
}

static inline void store(float *at, vector v)
{
    *(vector *)at = v;
}

#define EACH_PAIR(i) for (size_t i = 0; i < bytes / sizeof(float); i += 2 * W)

void kernel_read(float *a, const float *b, const float *c, size_t bytes)
{
    vector x = {0}, y = {0};

    (void)a, (void)c;
    EACH_PAIR(i) {
        x += load(b + i);
        y += load(b + i + W);
    }
    __asm__ volatile("" : : "m"(x), "m"(y));
}

void kernel_write(float *a, const float *b, const float *c, size_t bytes)
{
    vector v = {1};

    (void)b, (void)c;
    EACH_PAIR(i) {
        store(a + i, v);
        store(a + i + W, v);
    }
}

void kernel_write_stream(float *a, const float *b, const float *c, size_t bytes)
{
    vector v = {1};

    (void)b, (void)c;
    EACH_PAIR(i) {
        STREAM(a + i, v);
        STREAM(a + i + W, v);
    }
    STREAM_END();
}

void kernel_copy(float *a, const float *b, const float *c, size_t bytes)
{
    (void)c;
    EACH_PAIR(i) {
        vector x = load(b + i), y = load(b + i + W);

        store(a + i, x);
        store(a + i + W, y);
    }
}

void kernel_copy_stream(float *a, const float *b, const float *c, size_t bytes)
{
    (void)c;
    EACH_PAIR(i) {
        vector x = load(b + i), y = load(b + i + W);

        STREAM(a + i, x);
        STREAM(a + i + W, y);
    }
    STREAM_END();
}

void kernel_copy_libc(float *a, const float *b, const float *c, size_t bytes)
{
    (void)c;
    memcpy(a, b, bytes);
}

void kernel_add_to(float *a, const float *b, const float *c, size_t bytes)
{
    (void)c;
    EACH_PAIR(i) {
        store(a + i, load(a + i) + load(b + i));
        store(a + i + W, load(a + i + W) + load(b + i + W));
    }
}

void kernel_add(float *a, const float *b, const float *c, size_t bytes)
{
    EACH_PAIR(i) {
        store(a + i, load(b + i) + load(c + i));
        store(a + i + W, load(b + i + W) + load(c + i + W));
    }
}

void kernel_add_stream(float *a, const float *b, const float *c, size_t bytes)
{
    EACH_PAIR(i) {
        STREAM(a + i, load(b + i) + load(c + i));
        STREAM(a + i + W, load(b + i + W) + load(c + i + W));
    }
    STREAM_END();
}

void kernel_allreduce(float *const *in, float *const *out, int count, size_t begin,
                      size_t end, int stream)
{
    for (size_t i = begin; i < end; i += 2 * W) {
        vector x = load(in[0] + i), y = load(in[0] + i + W);

        for (int r = 1; r < count; r++) {
            x += load(in[r] + i);
            y += load(in[r] + i + W);
        }
        for (int r = 0; r < count; r++) {
            if (stream) {
                STREAM(out[r] + i, x);
                STREAM(out[r] + i + W, y);
            } else {
                store(out[r] + i, x);
                store(out[r] + i + W, y);
            }
        }
    }
    if (stream)
        STREAM_END();
}
