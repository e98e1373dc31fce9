/* reduce_base.c: the kernels for every CPU of the family (x86-64: SSE2). */
#define VB 16
#define SET_NAME "base"
#define SET_TABLE red_table_base
#include "reduce/kernels.inc"
