// The kernels for NEON with the dot product instructions of ARMv8.2.
#define SET neon_dot
#define NAME "neon_dot"
#define KERNELS neon_dot_kernels
#define SELFSPEC_DOTPROD
#include "dots_neon.h"

#include "kernels.inl"
