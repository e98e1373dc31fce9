/* reduce_avx2.c: the kernels for AVX2 and F16C. */
#define VB 32
#define SET_NAME "avx2"
#define SET_TABLE red_table_avx2
#include "reduce/kernels.inc"
