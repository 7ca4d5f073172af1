#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "half.h"

namespace selfspec {
namespace {

// One row of a block: 32 values as they are stored.
struct Row {
  std::uint8_t q[BLOCK];  // int8 and int4
  float x[BLOCK];         // the others
  std::uint16_t scale = 0, minimum = 0;
};

std::uint16_t* halves(std::uint8_t* p) { return reinterpret_cast<std::uint16_t*>(p); }
const std::uint16_t* halves(const std::uint8_t* p) { return reinterpret_cast<const std::uint16_t*>(p); }

void write(Kind kind, const Row& row, int j, std::uint8_t* block) {
  const int lane = j % 8 * 2 + j / 8;
  for (int i = 0; i < BLOCK; i++) switch (kind) {
      case Kind::fp32: reinterpret_cast<float*>(block)[i * GROUP + j] = row.x[i]; break;
      case Kind::fp16: halves(block)[i * GROUP + j] = to_half(row.x[i]); break;
      case Kind::bf16: halves(block)[i * GROUP + lane] = to_bfloat(row.x[i]); break;
      case Kind::int8: block[i / 2 * 32 + j * 2 + i % 2] = row.q[i]; break;
      case Kind::int4: {
        std::uint8_t& both = block[i / 4 * 32 + j % 8 * 4 + i % 4];
        both = j < 8 ? (both & 0xf0) | row.q[i] : (both & 0x0f) | row.q[i] << 4;
        break;
      }
    }
  if (kind == Kind::int8) halves(block + 512)[j] = row.scale;
  if (kind == Kind::int4) halves(block + 256)[j] = row.scale, halves(block + 288)[j] = row.minimum;
}

void read(Kind kind, const std::uint8_t* block, int j, float* out) {
  const int lane = j % 8 * 2 + j / 8;
  const bool int8 = kind == Kind::int8, int4 = kind == Kind::int4;
  const float scale = int8 ? from_half(halves(block + 512)[j]) : int4 ? from_half(halves(block + 256)[j]) : 0;
  const float minimum = int4 ? from_half(halves(block + 288)[j]) : 0;
  for (int i = 0; i < BLOCK; i++) switch (kind) {
      case Kind::fp32: out[i] = reinterpret_cast<const float*>(block)[i * GROUP + j]; break;
      case Kind::fp16: out[i] = from_half(halves(block)[i * GROUP + j]); break;
      case Kind::bf16: out[i] = from_bfloat(halves(block)[i * GROUP + lane]); break;
      case Kind::int8: out[i] = scale * static_cast<std::int8_t>(block[i / 2 * 32 + j * 2 + i % 2]); break;
      case Kind::int4: {
        const std::uint8_t both = block[i / 4 * 32 + j % 8 * 4 + i % 4];
        out[i] = scale * static_cast<float>(j < 8 ? both & 15 : both >> 4) + minimum;
        break;
      }
    }
}

void quantise8(const float* x, Row& row) {
  float most = 0;
  for (int i = 0; i < BLOCK; i++) most = std::max(most, std::fabs(x[i]));
  row.scale = to_half(most / 127);
  const float step = from_half(row.scale), inverse = step > 0 ? 1 / step : 0;
  for (int i = 0; i < BLOCK; i++) {
    const float q = std::clamp(std::nearbyintf(x[i] * inverse), -127.0f, 127.0f);
    row.q[i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(q));
  }
}

void quantise4(const float* x, Row& row) {
  const auto [low, high] = std::minmax_element(x, x + BLOCK);
  row.scale = to_half((*high - *low) / 15), row.minimum = to_half(*low);
  const float step = from_half(row.scale), base = from_half(row.minimum), inverse = step > 0 ? 1 / step : 0;
  for (int i = 0; i < BLOCK; i++)
    row.q[i] = static_cast<std::uint8_t>(std::clamp(std::nearbyintf((x[i] - base) * inverse), 0.0f, 15.0f));
}

// Runs fill(row, block, Row&) for every block of every real row.
template <class Fill> void pack_with(Kind kind, int n, int k, std::uint8_t* out, Fill fill) {
  const Matrix w{kind, n, k, out};
  std::memset(out, 0, w.bytes());
  for (int j = 0; j < n; j++)
    for (int b = 0; b < w.blocks(); b++) {
      Row row;
      fill(j, b, row);
      write(kind, row, j % GROUP, out + j / GROUP * w.group_bytes() + b * block_bytes(kind));
    }
}

}  // namespace

void pack(Kind kind, const float* weights, int n, int k, std::uint8_t* out) {
  pack_with(kind, n, k, out, [&](int j, int b, Row& row) {
    const int count = std::min(BLOCK, k - b * BLOCK);
    std::memset(row.x, 0, sizeof row.x);
    std::memcpy(row.x, weights + static_cast<std::size_t>(j) * k + b * BLOCK, sizeof(float) * count);
    if (kind == Kind::int8) quantise8(row.x, row);
    if (kind == Kind::int4) quantise4(row.x, row);
  });
}

void pack(Kind kind, const Levels& from, int n, int k, std::uint8_t* out) {
  pack_with(kind, n, k, out, [&](int j, int b, Row& row) {
    const std::size_t block = static_cast<std::size_t>(j) * (k / BLOCK) + b;
    std::memcpy(row.q, from.levels + block * BLOCK, BLOCK);
    if (kind == Kind::int4)  // nothing else fits
      for (std::uint8_t& q : row.q) q &= 15;
    row.scale = from.scales[block], row.minimum = from.minima[block];
  });
}

void unpack_row(const Matrix& w, int row, float* out) {
  float x[BLOCK];
  for (int b = 0; b < w.blocks(); b++) {
    read(w.kind, w.data + row / GROUP * w.group_bytes() + b * block_bytes(w.kind), row % GROUP, x);
    std::memcpy(out + b * BLOCK, x, sizeof(float) * std::min(BLOCK, w.k - b * BLOCK));
  }
}

void copy_row(const Matrix& from, int row, std::uint8_t* data, int to) {
  for (int b = 0; b < from.blocks(); b++) {
    const std::size_t at = b * block_bytes(from.kind);
    const std::uint8_t* block = from.data + row / GROUP * from.group_bytes() + at;
    const int j = row % GROUP;
    Row values;
    read(from.kind, block, j, values.x);
    if (from.kind == Kind::int8) {
      for (int i = 0; i < BLOCK; i++) values.q[i] = block[i / 2 * 32 + j * 2 + i % 2];
      values.scale = halves(block + 512)[j];
    }
    if (from.kind == Kind::int4) {
      for (int i = 0; i < BLOCK; i++) {
        const std::uint8_t both = block[i / 4 * 32 + j % 8 * 4 + i % 4];
        values.q[i] = j < 8 ? both & 15 : both >> 4;
      }
      values.scale = halves(block + 256)[j], values.minimum = halves(block + 288)[j];
    }
    write(from.kind, values, to % GROUP, data + to / GROUP * from.group_bytes() + at);
  }
}

}  // namespace selfspec
