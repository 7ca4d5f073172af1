// The kernels for NEON, which every ARMv8 processor has.
#define SET neon
#define NAME "neon"
#define KERNELS neon_kernels
#include "dots_neon.h"

#include "kernels.inl"
