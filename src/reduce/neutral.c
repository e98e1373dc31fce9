/*
 * neutral.c: the elements that leave an operation unchanged, for ranks that have
 * joined.  The neutral element of a float sum is -0.0: x + -0.0 is x for both zeros.
 */
#include "base/error.h"
#include "reduce/reduce.h"

#include <string.h>

/* by type: sum, product, minimum, maximum */
static const uint64_t neutral[HVD_DTYPE_COUNT][RED_OP_COUNT] = {
    [HVD_U8] = {0, 1, UINT8_MAX, 0},
    [HVD_I8] = {0, 1, INT8_MAX, (uint8_t)INT8_MIN},
    [HVD_U16] = {0, 1, UINT16_MAX, 0},
    [HVD_I16] = {0, 1, INT16_MAX, (uint16_t)INT16_MIN},
    [HVD_I32] = {0, 1, INT32_MAX, (uint32_t)INT32_MIN},
    [HVD_I64] = {0, 1, INT64_MAX, (uint64_t)INT64_MIN},
    [HVD_F16] = {0x8000, 0x3c00, 0x7c00, 0xfc00},
    [HVD_F32] = {0x80000000, 0x3f800000, 0x7f800000, 0xff800000},
    [HVD_F64] = {0x8000000000000000, 0x3ff0000000000000, 0x7ff0000000000000,
                 0xfff0000000000000},
    [HVD_BOOL] = {0, 1, 1, 0},
    [HVD_BF16] = {0x8000, 0x3f80, 0x7f80, 0xff80},
};

void red_fill_neutral(void *dst, size_t count, enum hvd_dtype dtype, enum red_op op)
{
    size_t bytes = hvd_dtype_bytes(dtype), done = bytes, all = count * bytes;
    unsigned char *p = dst;

    BUG_ON(!red_can(dtype, op));
    if (count == 0)
        return;
    for (size_t k = 0; k < bytes; k++)
        p[k] = (unsigned char)(neutral[dtype][op] >> (8 * k));
    while (done < all) {
        size_t n = done < all - done ? done : all - done;

        memcpy(p + done, p, n);
        done += n;
    }
}
