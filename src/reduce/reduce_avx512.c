/* reduce_avx512.c: the kernels for AVX-512 (F, BW, DQ, VL). */
#define VB 64
#define SET_NAME "avx512"
#define SET_TABLE red_table_avx512
#include "reduce/kernels.inc"
