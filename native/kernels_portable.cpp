// The kernels in plain C++.
#include "simd_portable.h"

namespace selfspec::portable {

#include "activations.inl"
#include "rowwise.inl"
#include "tiles.inl"
#include "attention.inl"

}  // namespace selfspec::portable

namespace selfspec {

const Kernels& portable_kernels() {
  using namespace portable;
  static const Kernels set{"portable", norm,    prepare, rotate, store_key, store_value,
                           product,    attend, fold,    total,  sweep};
  return set;
}

}  // namespace selfspec
