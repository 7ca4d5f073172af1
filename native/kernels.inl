// One set of kernels. SET is the namespace that has its vectors, NAME and KERNELS are how others know it. Compiled with
// the flags of an instruction set, so nothing inline of the standard library is used here.

namespace selfspec::SET {

#include "activations.inl"
#include "rowwise.inl"
#include "tiles.inl"
#include "attention.inl"

}  // namespace selfspec::SET

namespace selfspec {

const Kernels& KERNELS() {
  using namespace SET;
  static const Kernels set{NAME, norm, prepare, rotate, store_key, store_value, product, attend, fold, total, sweep};
  return set;
}

}  // namespace selfspec
