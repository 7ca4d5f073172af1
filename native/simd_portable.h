// Eight floats or integers in plain C++: the same operations, in the same order, as simd_avx2.h.
#pragma once
#include <cmath>

#include "half.h"
#include "kinds.h"

#define UNROLL

namespace selfspec::SET {

constexpr int TILE_ROWS = 2;  // of a product
constexpr int VECTORS = 2;    // query vectors of a tile of attention

struct F8 { float v[8]; };
struct I8 { std::int32_t v[8]; };

static inline void keep(F8&) {}  // advice for the vector units' compiler

template <class F> static inline F8 each(F f) {
  F8 r;
  for (int i = 0; i < 8; i++) r.v[i] = f(i);
  return r;
}
static inline F8 set1(float x) { return each([&](int) { return x; }); }
static inline F8 set1_half(std::uint16_t bits) { return set1(from_half(bits)); }
static inline F8 load(const float* p) { return each([&](int i) { return p[i]; }); }
static inline F8 load(const std::uint16_t* p) { return each([&](int i) { return from_half(p[i]); }); }
static inline F8 load(const Half* p) { return load(&p->bits); }
static inline F8 load(const Bfloat* p) { return each([&](int i) { return from_bfloat(p[i].bits); }); }
static inline F8 load(const Level* p) { return each([&](int i) { return static_cast<float>(p[i].level); }); }
static inline void store(float* p, F8 a) { std::memcpy(p, a.v, 32); }
static inline void store(Half* p, F8 a) {
  for (int i = 0; i < 8; i++) p[i].bits = to_half(a.v[i]);
}
static inline void store(Bfloat* p, F8 a) {
  for (int i = 0; i < 8; i++) p[i].bits = to_bfloat(a.v[i]);
}
static inline F8 add(F8 a, F8 b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
static inline F8 sub(F8 a, F8 b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
static inline F8 mul(F8 a, F8 b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
static inline F8 div(F8 a, F8 b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
static inline F8 max(F8 a, F8 b) { return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
static inline F8 min(F8 a, F8 b) { return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
static inline F8 abs(F8 a) { return each([&](int i) { return std::fabs(a.v[i]); }); }
static inline F8 fma(F8 a, F8 b, F8 c) { return each([&](int i) { return fused(a.v[i], b.v[i], c.v[i]); }); }
static inline F8 fnma(F8 a, F8 b, F8 c) { return each([&](int i) { return fused(-a.v[i], b.v[i], c.v[i]); }); }
static inline F8 at_least(F8 a, F8 x, float low) {  // a where x >= low, else 0
  return each([&](int i) { return x.v[i] >= low ? a.v[i] : 0.0f; });
}
// Nearest, ties to even, for |a| < 2^22: adding 1.5 * 2^23 leaves no room for a fraction.
static inline F8 round(F8 a) { return each([&](int i) { return (a.v[i] + 12582912.0f) - 12582912.0f; }); }
static inline I8 to_int(F8 a) {
  const F8 r = round(a);
  I8 n;
  for (int i = 0; i < 8; i++) n.v[i] = static_cast<std::int32_t>(r.v[i]);
  return n;
}
static inline F8 to_float(I8 a) { return each([&](int i) { return static_cast<float>(a.v[i]); }); }
static inline F8 scale2(F8 a, I8 n) {  // a * 2^n, both normal
  return each([&](int i) { return float_of(bits_of(a.v[i]) + (static_cast<std::uint32_t>(n.v[i]) << 23)); });
}
static inline float max_of(F8 a) {
  float m = a.v[0];
  for (int i = 1; i < 8; i++) m = a.v[i] > m ? a.v[i] : m;
  return m;
}
static inline float sum_of(F8 a) {  // halves, then quarters, then pairs: the order of the vector units
  float q[4];
  for (int i = 0; i < 4; i++) q[i] = a.v[i] + a.v[i + 4];
  return (q[0] + q[2]) + (q[1] + q[3]);
}
static inline std::int32_t sum_of(I8 a) {
  std::int32_t s = 0;
  for (int i = 0; i < 8; i++) s += a.v[i];
  return s;
}
static inline void store_words(std::int16_t* p, const I8* q) {
  for (int i = 0; i < 32; i++) p[i] = static_cast<std::int16_t>(q[i / 8].v[i % 8]);
}
static inline void store_bytes(std::int8_t* p, const I8* q) {
  for (int i = 0; i < 32; i++) p[i] = static_cast<std::int8_t>(q[i / 8].v[i % 8]);
}
static inline void prefetch(const void* p) { __builtin_prefetch(p); }

#include "eights.inl"

// Weights of one input: outputs 0-7 and 8-15.
template <Kind kind> static inline void weights(const std::uint8_t* w, int k, Wide (&v)[PARTS]) {
  if constexpr (kind == Kind::fp32) {
    const float* p = reinterpret_cast<const float*>(w) + k * 16;
    v[0] = load(p), v[1] = load(p + 8);
  } else {
    const std::uint16_t* p = reinterpret_cast<const std::uint16_t*>(w) + k * 16;
    if constexpr (kind == Kind::fp16) {
      v[0] = load(p), v[1] = load(p + 8);
    } else {
      v[0] = each([&](int i) { return from_bfloat(p[2 * i]); });
      v[1] = each([&](int i) { return from_bfloat(p[2 * i + 1]); });
    }
  }
}

// Sums over one block of R rows: c[t][0] outputs 0-7, c[t][1] outputs 8-15. Integers: exact in any order.
template <int R> static inline void dot_int8(const std::uint8_t* w, const std::int16_t* a, I8 (&c)[R][2]) {
  const std::int8_t* q = reinterpret_cast<const std::int8_t*>(w);
  for (int t = 0; t < R; t++)
    for (int j = 0; j < 16; j++) {
      std::int32_t s = 0;
      for (int i = 0; i < 32; i++) s += q[i / 2 * 32 + j * 2 + i % 2] * a[t * 32 + i];
      c[t][j / 8].v[j % 8] = s;
    }
}
template <int R> static inline void dot_int4(const std::uint8_t* w, const std::int8_t* a, I8 (&c)[R][2]) {
  for (int t = 0; t < R; t++)
    for (int j = 0; j < 16; j++) {
      std::int32_t s = 0;
      for (int i = 0; i < 32; i++) {
        const std::uint8_t byte = w[i / 4 * 32 + j % 8 * 4 + i % 4];
        s += (j < 8 ? byte & 15 : byte >> 4) * a[t * 32 + i];
      }
      c[t][j / 8].v[j % 8] = s;
    }
}

}  // namespace selfspec::SET
