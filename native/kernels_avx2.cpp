// The kernels for AVX2, FMA and F16C.
#define SET avx2
#define NAME "avx2"
#define KERNELS avx2_kernels
#include "dots_avx2.h"

#include "kernels.inl"
