// The kernels for NEON, which every ARMv8 processor has.
#include "simd_neon.h"

namespace selfspec::neon {

#include "activations.inl"
#include "rowwise.inl"
#include "tiles.inl"
#include "attention.inl"

}  // namespace selfspec::neon

namespace selfspec {

const Kernels& neon_kernels() {
  using namespace neon;
  static const Kernels set{"neon", norm, prepare, rotate, store_key, store_value, product, attend, fold, total, sweep};
  return set;
}

}  // namespace selfspec
