/* reduce_base.c: the kernels for what every CPU of the family can (x86-64: SSE2; others: plain C). */
#define VB 16
#define SET_NAME "base"
#define SET_TABLE red_table_base
#include "reduce/kernels.inc"
