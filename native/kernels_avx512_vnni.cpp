// The kernels for AVX-512 with AVX512_VNNI.
#define SET avx512_vnni
#define NAME "avx512_vnni"
#define KERNELS avx512_vnni_kernels
#define SELFSPEC_AVX512_VNNI
#include "dots_avx512.h"

#include "kernels.inl"
