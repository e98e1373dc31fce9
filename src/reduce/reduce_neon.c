/* reduce_neon.c: the kernels for NEON (every 64-bit ARM). */
#define VB 16
#define SET_NAME "neon"
#define SET_TABLE red_table_neon
#include "reduce/kernels.inc"
