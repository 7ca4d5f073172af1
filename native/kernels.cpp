// The kernel sets of this processor.
#include "kernels.h"

#if defined(SELFSPEC_NEON) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace selfspec {

const Kernels& portable_kernels();
#ifdef SELFSPEC_X86
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& avx512_vnni_kernels();
#endif
#ifdef SELFSPEC_AVX_VNNI_KERNELS
const Kernels& avx_vnni_kernels();
#endif
#ifdef SELFSPEC_NEON
const Kernels& neon_kernels();
const Kernels& neon_dot_kernels();
#endif

bool has_dot_products() {
#if defined(SELFSPEC_NEON) && defined(__linux__)
  constexpr unsigned long asimddp = 1ul << 20;  // HWCAP_ASIMDDP
  return getauxval(AT_HWCAP) & asimddp;
#elif defined(SELFSPEC_NEON) && defined(__APPLE__)
  return true;  // every processor of Apple's that runs macOS
#else
  return false;
#endif
}

std::vector<const Kernels*> kernel_sets() {
  std::vector<const Kernels*> found;
#ifdef SELFSPEC_X86
#define HAS __builtin_cpu_supports
  const bool avx2 = HAS("avx2") && HAS("fma") && HAS("f16c");
  const bool avx512 = avx2 && HAS("avx512f") && HAS("avx512bw") && HAS("avx512dq") && HAS("avx512vl");
  if (avx512 && HAS("avx512vnni")) found.push_back(&avx512_vnni_kernels());
  if (avx512) found.push_back(&avx512_kernels());
#ifdef SELFSPEC_AVX_VNNI_KERNELS
  if (avx2 && HAS("avxvnni")) found.push_back(&avx_vnni_kernels());
#endif
  if (avx2) found.push_back(&avx2_kernels());
#undef HAS
#endif
#ifdef SELFSPEC_NEON
  if (has_dot_products()) found.push_back(&neon_dot_kernels());
  found.push_back(&neon_kernels());
#endif
  found.push_back(&portable_kernels());
  return found;
}

}  // namespace selfspec
