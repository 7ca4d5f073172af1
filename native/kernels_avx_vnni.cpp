// The kernels for AVX2 with AVX_VNNI.
#define SET avx_vnni
#define NAME "avx_vnni"
#define KERNELS avx_vnni_kernels
#define SELFSPEC_AVX_VNNI
#include "dots_avx2.h"

#include "kernels.inl"
