// The kernels for AVX2, FMA and F16C. Compiled with those flags, so it uses nothing inline of the standard library.

#include "simd_avx2.h"

namespace selfspec::avx2 {

#include "activations.inl"
#include "rowwise.inl"
#include "tiles.inl"
#include "attention.inl"

}  // namespace selfspec::avx2

namespace selfspec {

const Kernels& avx2_kernels() {
  using namespace avx2;
  static const Kernels set{"avx2", norm, prepare, rotate, store_key, store_value, product, attend, fold, total, sweep};
  return set;
}

}  // namespace selfspec
