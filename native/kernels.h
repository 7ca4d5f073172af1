// Which kernel sets there are.
#pragma once
#include <vector>

#include "kinds.h"

namespace selfspec {

// Those that this processor runs, the fastest first. The portable one is always among them.
std::vector<const Kernels*> kernel_sets();

// Whether an ARM processor has the dot product instructions of ARMv8.2.
bool has_dot_products();

}  // namespace selfspec
