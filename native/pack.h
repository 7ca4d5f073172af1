// Packing of matrices, and reading rows back.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kinds.h"

namespace selfspec {

// weights [n, k] in float32 -> out; int8 and int4 are rounded to the nearest value of their block.
void pack(Kind kind, const float* weights, int n, int k, std::uint8_t* out);

// Blocks of GGUF, whose values are taken over exactly: rows [n, k / 32 blocks].
enum class Blocks { q8_0, q4_0, q4_1 };
std::size_t gguf_block_bytes(Blocks type);
Kind kind_of(Blocks type);
void pack_blocks(Blocks type, const std::uint8_t* rows, int n, int k, std::uint8_t* out);

// Row `row` as float32 [k].
void unpack_row(const Matrix& w, int row, float* out);
// Row `row` of `from`, bit for bit, as row `to` of another matrix of the same kind and inputs.
void copy_row(const Matrix& from, int row, std::uint8_t* data, int to);

}  // namespace selfspec
