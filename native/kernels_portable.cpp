// The kernels in plain C++.
#define SET portable
#define NAME "portable"
#define KERNELS portable_kernels
#include "simd_portable.h"

#include "kernels.inl"
