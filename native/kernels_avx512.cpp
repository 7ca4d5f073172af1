// The kernels for AVX-512 (F, BW, DQ, VL).
#define SET avx512
#define NAME "avx512"
#define KERNELS avx512_kernels
#include "dots_avx512.h"

#include "kernels.inl"
