// Products with NEON. SELFSPEC_DOTPROD: compiled with the dot product instructions of ARMv8.2, which sum four products
// of bytes in one; integer sums are exact, so the bits are the same. (The matrix products of ARMv8.6 gain nothing here:
// docs/wheels.md.)
#pragma once
#include "simd_neon.h"

namespace selfspec::SET {

constexpr int TILE_ROWS = 4;  // of a product
constexpr int VECTORS = 6;    // query vectors of a tile of attention

#include "eights.inl"

template <Kind kind> static inline void weights(const std::uint8_t* w, int k, Wide (&v)[PARTS]) {
  if constexpr (kind == Kind::fp32) {
    const float* p = reinterpret_cast<const float*>(w) + k * 16;
    v[0] = load(p), v[1] = load(p + 8);
  } else if constexpr (kind == Kind::fp16) {
    const std::uint16_t* p = reinterpret_cast<const std::uint16_t*>(w) + k * 16;
    v[0] = load(p), v[1] = load(p + 8);
  } else {
    const uint32_t* p = reinterpret_cast<const uint32_t*>(w + k * 32);
    const uint32x4_t a = vld1q_u32(p), b = vld1q_u32(p + 4), top = vdupq_n_u32(0xffff0000);
    v[0] = {vreinterpretq_f32_u32(vshlq_n_u32(a, 16)), vreinterpretq_f32_u32(vshlq_n_u32(b, 16))};
    v[1] = {vreinterpretq_f32_u32(vandq_u32(a, top)), vreinterpretq_f32_u32(vandq_u32(b, top))};
  }
  keep(v[0]), keep(v[1]);
}

// In this order; else compilers load everything first, and have no registers left.
static inline void keep(int32x4_t& x) { asm volatile("" : "+w"(x)); }

// Sixteen inputs of a row as bytes; the words of int8 are within a byte.
static inline int8x16_t sixteen(const std::int8_t* a) { return vld1q_s8(a); }
static inline int8x16_t sixteen(const std::int16_t* a) {
  return vuzp1q_s8(vreinterpretq_s8_s16(vld1q_s16(a)), vreinterpretq_s8_s16(vld1q_s16(a + 8)));
}

#ifdef SELFSPEC_DOTPROD

// Quad q of a block: outputs 4 i to 4 i + 3 of four inputs are in w[i]. In int8 two pairs of inputs become a quad.
static inline void quads(const std::uint8_t* block, int q, const std::int16_t*, int8x16_t (&w)[4]) {
  const std::int16_t* p = reinterpret_cast<const std::int16_t*>(block) + q * 32;
  const int16x8_t w0 = vld1q_s16(p), w1 = vld1q_s16(p + 8), w2 = vld1q_s16(p + 16), w3 = vld1q_s16(p + 24);
  w[0] = vreinterpretq_s8_s16(vzip1q_s16(w0, w2)), w[1] = vreinterpretq_s8_s16(vzip2q_s16(w0, w2));
  w[2] = vreinterpretq_s8_s16(vzip1q_s16(w1, w3)), w[3] = vreinterpretq_s8_s16(vzip2q_s16(w1, w3));
}
static inline void quads(const std::uint8_t* block, int q, const std::int8_t*, int8x16_t (&w)[4]) {
  const uint8x16_t w0 = vld1q_u8(block + q * 32), w1 = vld1q_u8(block + q * 32 + 16), mask = vdupq_n_u8(15);
  w[0] = vreinterpretq_s8_u8(vandq_u8(w0, mask)), w[1] = vreinterpretq_s8_u8(vandq_u8(w1, mask));
  w[2] = vreinterpretq_s8_u8(vshrq_n_u8(w0, 4)), w[3] = vreinterpretq_s8_u8(vshrq_n_u8(w1, 4));
}

// One output a lane: four products each, with quad `lane` of sixteen inputs of each row.
template <int lane, int R> static inline void add_quad(const int8x16_t (&w)[4], const int8x16_t (&x)[R], I8 (&c)[R][2]) {
  UNROLL for (int t = 0; t < R; t++) {
    c[t][0].a = vdotq_laneq_s32(c[t][0].a, w[0], x[t], lane), c[t][0].b = vdotq_laneq_s32(c[t][0].b, w[1], x[t], lane);
    c[t][1].a = vdotq_laneq_s32(c[t][1].a, w[2], x[t], lane), c[t][1].b = vdotq_laneq_s32(c[t][1].b, w[3], x[t], lane);
    keep(c[t][0].a), keep(c[t][0].b), keep(c[t][1].a), keep(c[t][1].b);
  }
}
template <int R, class A> static inline void dot(const std::uint8_t* block, const A* a, I8 (&c)[R][2]) {
  UNROLL for (int t = 0; t < R; t++) UNROLL for (int h = 0; h < 2; h++) c[t][h] = {vdupq_n_s32(0), vdupq_n_s32(0)};
  _Pragma("GCC unroll 1") for (int q = 0; q < 8; q += 4) {
    int8x16_t w[4], x[R];
    UNROLL for (int t = 0; t < R; t++) x[t] = sixteen(a + t * 32 + q * 4);
    quads(block, q, a, w), add_quad<0>(w, x, c);
    quads(block, q + 1, a, w), add_quad<1>(w, x, c);
    quads(block, q + 2, a, w), add_quad<2>(w, x, c);
    quads(block, q + 3, a, w), add_quad<3>(w, x, c);
  }
}

template <int R> static inline void dot_int8(const std::uint8_t* w, const std::int16_t* a, I8 (&c)[R][2]) { dot<R>(w, a, c); }
template <int R> static inline void dot_int4(const std::uint8_t* w, const std::int8_t* a, I8 (&c)[R][2]) { dot<R>(w, a, c); }

#else

// Pair `lane` of sixteen inputs of each row; a product of bytes fits int16, and two of them are added as int32.
template <int lane, int R> static inline void add_pair(const std::uint8_t* pairs, const int16x8_t (&x)[R], I8 (&c)[R][2]) {
  const int8x16_t w0 = vld1q_s8(reinterpret_cast<const std::int8_t*>(pairs + lane * 32));
  const int8x16_t w1 = vld1q_s8(reinterpret_cast<const std::int8_t*>(pairs + lane * 32 + 16));
  UNROLL for (int t = 0; t < R; t++) {
    const int8x16_t two = vreinterpretq_s8_s16(vdupq_laneq_s16(x[t], lane));
    c[t][0].a = vpadalq_s16(c[t][0].a, vmull_s8(vget_low_s8(w0), vget_low_s8(two)));
    c[t][0].b = vpadalq_s16(c[t][0].b, vmull_high_s8(w0, two));
    c[t][1].a = vpadalq_s16(c[t][1].a, vmull_s8(vget_low_s8(w1), vget_low_s8(two)));
    c[t][1].b = vpadalq_s16(c[t][1].b, vmull_high_s8(w1, two));
    keep(c[t][0].a), keep(c[t][0].b), keep(c[t][1].a), keep(c[t][1].b);
  }
}
template <int R> static inline void dot_int8(const std::uint8_t* w, const std::int16_t* a, I8 (&c)[R][2]) {
  UNROLL for (int t = 0; t < R; t++) UNROLL for (int h = 0; h < 2; h++) c[t][h] = {vdupq_n_s32(0), vdupq_n_s32(0)};
  _Pragma("GCC unroll 1") for (int half = 0; half < 2; half++, w += 256) {
    int16x8_t x[R];
    UNROLL for (int t = 0; t < R; t++) x[t] = vreinterpretq_s16_s8(sixteen(a + t * 32 + half * 16));
    add_pair<0>(w, x, c), add_pair<1>(w, x, c), add_pair<2>(w, x, c), add_pair<3>(w, x, c);
    add_pair<4>(w, x, c), add_pair<5>(w, x, c), add_pair<6>(w, x, c), add_pair<7>(w, x, c);
  }
}

// Eight bytes a lane of sums: two outputs of four inputs. At most 8 * 15 * 127 a lane: fits int16.
static inline int32x4_t folded(int16x8_t x, int16x8_t y) { return vpaddq_s32(vpaddlq_s16(x), vpaddlq_s16(y)); }

template <int R> static inline void dot_int4(const std::uint8_t* w, const std::int8_t* a, I8 (&c)[R][2]) {
  int16x8_t sums[R][8];
  UNROLL for (int t = 0; t < R; t++) UNROLL for (int i = 0; i < 8; i++) sums[t][i] = vdupq_n_s16(0);
  for (int q = 0; q < 8; q++) {
    const uint8x16_t w0 = vld1q_u8(w + q * 32), w1 = vld1q_u8(w + q * 32 + 16), mask = vdupq_n_u8(15);
    const int8x16_t parts[4] = {vreinterpretq_s8_u8(vandq_u8(w0, mask)), vreinterpretq_s8_u8(vandq_u8(w1, mask)),
                                vreinterpretq_s8_u8(vshrq_n_u8(w0, 4)), vreinterpretq_s8_u8(vshrq_n_u8(w1, 4))};
    UNROLL for (int t = 0; t < R; t++) {
      std::int32_t four;
      std::memcpy(&four, a + t * 32 + q * 4, 4);
      const int8x8_t x = vreinterpret_s8_s32(vdup_n_s32(four));
      UNROLL for (int i = 0; i < 4; i++) {
        sums[t][2 * i] = vmlal_s8(sums[t][2 * i], vget_low_s8(parts[i]), x);
        sums[t][2 * i + 1] = vmlal_s8(sums[t][2 * i + 1], vget_high_s8(parts[i]), x);
      }
    }
  }
  UNROLL for (int t = 0; t < R; t++) UNROLL for (int h = 0; h < 2; h++)
      c[t][h] = {folded(sums[t][4 * h], sums[t][4 * h + 1]), folded(sums[t][4 * h + 2], sums[t][4 * h + 3])};
}

#endif

}  // namespace selfspec::SET
