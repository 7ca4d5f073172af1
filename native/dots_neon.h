// Products with NEON. SELFSPEC_DOTPROD: compiled with the dot product instructions of ARMv8.2, which sum four products
// of bytes in one; integer sums are exact, so the bits are the same.
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

#ifdef SELFSPEC_DOTPROD

static inline int8x16_t all_four(const std::int8_t* p) {
  std::int32_t x;
  std::memcpy(&x, p, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(x));
}

// Pairs of inputs become quads: outputs 4 i to 4 i + 3 are in quads[i].
template <int R> static inline void dot_int8(const std::uint8_t* w, const std::int16_t* a, I8 (&c)[R][2]) {
  UNROLL for (int t = 0; t < R; t++) UNROLL for (int h = 0; h < 2; h++) c[t][h] = {vdupq_n_s32(0), vdupq_n_s32(0)};
  const std::int16_t* pairs = reinterpret_cast<const std::int16_t*>(w);
  for (int q = 0; q < 8; q++, pairs += 32) {
    const int16x8_t w0 = vld1q_s16(pairs), w1 = vld1q_s16(pairs + 8), w2 = vld1q_s16(pairs + 16), w3 = vld1q_s16(pairs + 24);
    const int8x16_t quads[4] = {vreinterpretq_s8_s16(vzip1q_s16(w0, w2)), vreinterpretq_s8_s16(vzip2q_s16(w0, w2)),
                                vreinterpretq_s8_s16(vzip1q_s16(w1, w3)), vreinterpretq_s8_s16(vzip2q_s16(w1, w3))};
    UNROLL for (int t = 0; t < R; t++) {
      const int16x4_t words = vld1_s16(a + t * 32 + q * 4);  // within a byte
      const int8x16_t x = vreinterpretq_s8_s32(vdupq_lane_s32(vreinterpret_s32_s8(vmovn_s16(vcombine_s16(words, words))), 0));
      c[t][0].a = vdotq_s32(c[t][0].a, quads[0], x), c[t][0].b = vdotq_s32(c[t][0].b, quads[1], x);
      c[t][1].a = vdotq_s32(c[t][1].a, quads[2], x), c[t][1].b = vdotq_s32(c[t][1].b, quads[3], x);
    }
  }
}

template <int R> static inline void dot_int4(const std::uint8_t* w, const std::int8_t* a, I8 (&c)[R][2]) {
  UNROLL for (int t = 0; t < R; t++) UNROLL for (int h = 0; h < 2; h++) c[t][h] = {vdupq_n_s32(0), vdupq_n_s32(0)};
  for (int q = 0; q < 8; q++) {
    const uint8x16_t w0 = vld1q_u8(w + q * 32), w1 = vld1q_u8(w + q * 32 + 16), mask = vdupq_n_u8(15);
    const int8x16_t quads[4] = {vreinterpretq_s8_u8(vandq_u8(w0, mask)), vreinterpretq_s8_u8(vandq_u8(w1, mask)),
                                vreinterpretq_s8_u8(vshrq_n_u8(w0, 4)), vreinterpretq_s8_u8(vshrq_n_u8(w1, 4))};
    UNROLL for (int t = 0; t < R; t++) {
      const int8x16_t x = all_four(a + t * 32 + q * 4);
      c[t][0].a = vdotq_s32(c[t][0].a, quads[0], x), c[t][0].b = vdotq_s32(c[t][0].b, quads[1], x);
      c[t][1].a = vdotq_s32(c[t][1].a, quads[2], x), c[t][1].b = vdotq_s32(c[t][1].b, quads[3], x);
    }
  }
}

#else

// Four outputs of one pair of inputs.
static inline int32x4_t pairs(int8x8_t w, int16x8_t x) {
  const int16x8_t wide = vmovl_s8(w);
  return vpaddq_s32(vmull_s16(vget_low_s16(wide), vget_low_s16(x)), vmull_high_s16(wide, x));
}

template <int R> static inline void dot_int8(const std::uint8_t* w, const std::int16_t* a, I8 (&c)[R][2]) {
  UNROLL for (int t = 0; t < R; t++) UNROLL for (int h = 0; h < 2; h++) c[t][h] = {vdupq_n_s32(0), vdupq_n_s32(0)};
  for (int p = 0; p < 16; p++) {
    const int8x16_t w0 = vld1q_s8(reinterpret_cast<const std::int8_t*>(w + p * 32));
    const int8x16_t w1 = vld1q_s8(reinterpret_cast<const std::int8_t*>(w + p * 32 + 16));
    UNROLL for (int t = 0; t < R; t++) {
      std::int32_t two;
      std::memcpy(&two, a + t * 32 + p * 2, 4);
      const int16x8_t x = vreinterpretq_s16_s32(vdupq_n_s32(two));
      c[t][0].a = vaddq_s32(c[t][0].a, pairs(vget_low_s8(w0), x)), c[t][0].b = vaddq_s32(c[t][0].b, pairs(vget_high_s8(w0), x));
      c[t][1].a = vaddq_s32(c[t][1].a, pairs(vget_low_s8(w1), x)), c[t][1].b = vaddq_s32(c[t][1].b, pairs(vget_high_s8(w1), x));
    }
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
