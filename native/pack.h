// Packing of matrices, and reading rows back.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kinds.h"

namespace selfspec {

// weights [n, k] in float32 -> out; int8 and int4 are rounded to the nearest value of their block.
void pack(Kind kind, const float* weights, int n, int k, std::uint8_t* out);

// int8 or int4 that is quantised already: levels [n, k], and scales and minima (of int4) [n, k / 32] in fp16.
struct Levels {
  const std::uint8_t* levels;
  const std::uint16_t *scales, *minima;
};
void pack(Kind kind, const Levels& from, int n, int k, std::uint8_t* out);

// Row `row` as float32 [k].
void unpack_row(const Matrix& w, int row, float* out);
// Row `row` of `from`, bit for bit, as row `to` of another matrix of the same kind and inputs.
void copy_row(const Matrix& from, int row, std::uint8_t* data, int to);

}  // namespace selfspec
