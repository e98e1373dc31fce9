/* tf_dtype.c: our types and TensorFlow's. */
#include "tensorflow/tf_ops.h"

static const struct {
    enum tf_dtype theirs;
    enum hvd_dtype ours;
} types[] = {
    {TF_FLOAT, HVD_F32}, {TF_DOUBLE, HVD_F64}, {TF_HALF, HVD_F16}, {TF_BFLOAT16, HVD_BF16},
    {TF_INT32, HVD_I32}, {TF_INT64, HVD_I64}, {TF_UINT8, HVD_U8}, {TF_INT8, HVD_I8},
    {TF_UINT16, HVD_U16}, {TF_INT16, HVD_I16}, {TF_BOOL, HVD_BOOL},
};

int dtype_to_hvd(enum tf_dtype dtype)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].theirs == dtype)
            return (int)types[i].ours;
    return -1;
}
