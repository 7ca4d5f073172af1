// Eight floats or integers of NEON (ARMv8), as two vectors of four: the same results as simd_portable.h.
#pragma once
#include <arm_neon.h>

#include "half.h"
#include "kinds.h"

#define UNROLL _Pragma("GCC unroll 32")

namespace selfspec::SET {

struct F8 { float32x4_t a, b; };
struct I8 { int32x4_t a, b; };

static inline void keep(F8& x) { asm("" : "+w"(x.a), "+w"(x.b)); }

static inline F8 set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
static inline F8 set1_half(std::uint16_t bits) {
  const float32x4_t x = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits)));
  return {x, x};
}
static inline F8 load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
static inline F8 load(const std::uint16_t* p) {
  const float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(p));
  return {vcvt_f32_f16(vget_low_f16(h)), vcvt_f32_f16(vget_high_f16(h))};
}
static inline F8 load(const Half* p) { return load(&p->bits); }
static inline F8 load(const Bfloat* p) {
  const uint16x8_t h = vld1q_u16(&p->bits);
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)), vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(h), 16))};
}
static inline F8 load(const Level* p) {
  const int16x8_t words = vmovl_s8(vld1_s8(&p->level));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(words)))};
}
static inline void store(float* p, F8 x) { vst1q_f32(p, x.a), vst1q_f32(p + 4, x.b); }
static inline void store(Half* p, F8 x) {
  vst1q_u16(&p->bits, vreinterpretq_u16_f16(vcombine_f16(vcvt_f16_f32(x.a), vcvt_f16_f32(x.b))));
}
// Nearest, ties to even; a NaN stays one.
static inline uint16x4_t bfloats(float32x4_t x) {
  const uint32x4_t u = vreinterpretq_u32_f32(x), high = vshrq_n_u32(u, 16), odd = vandq_u32(high, vdupq_n_u32(1));
  const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd), 16);
  return vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, vorrq_u32(high, vdupq_n_u32(64))));
}
static inline void store(Bfloat* p, F8 x) { vst1q_u16(&p->bits, vcombine_u16(bfloats(x.a), bfloats(x.b))); }
static inline F8 add(F8 x, F8 y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)}; }
static inline F8 sub(F8 x, F8 y) { return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b)}; }
static inline F8 mul(F8 x, F8 y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
static inline F8 div(F8 x, F8 y) { return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b)}; }
// Of a number and a NaN the second operand, as x86 has it; NEON's own would always give the NaN.
static inline F8 max(F8 x, F8 y) {
  return {vbslq_f32(vcgtq_f32(x.a, y.a), x.a, y.a), vbslq_f32(vcgtq_f32(x.b, y.b), x.b, y.b)};
}
static inline F8 min(F8 x, F8 y) {
  return {vbslq_f32(vcltq_f32(x.a, y.a), x.a, y.a), vbslq_f32(vcltq_f32(x.b, y.b), x.b, y.b)};
}
static inline F8 abs(F8 x) { return {vabsq_f32(x.a), vabsq_f32(x.b)}; }
static inline F8 fma(F8 x, F8 y, F8 z) { return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)}; }
static inline F8 fnma(F8 x, F8 y, F8 z) { return {vfmsq_f32(z.a, x.a, y.a), vfmsq_f32(z.b, x.b, y.b)}; }
static inline float32x4_t masked(float32x4_t x, uint32x4_t mask) {
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), mask));
}
static inline F8 at_least(F8 y, F8 x, float low) {  // y where x >= low, else 0
  const float32x4_t l = vdupq_n_f32(low);
  return {masked(y.a, vcgeq_f32(x.a, l)), masked(y.b, vcgeq_f32(x.b, l))};
}
static inline F8 round(F8 x) { return {vrndnq_f32(x.a), vrndnq_f32(x.b)}; }
static inline I8 to_int(F8 x) { return {vcvtnq_s32_f32(x.a), vcvtnq_s32_f32(x.b)}; }
static inline F8 to_float(I8 x) { return {vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b)}; }
static inline F8 scale2(F8 x, I8 n) {  // x * 2^n, both normal
  return {vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x.a), vshlq_n_s32(n.a, 23))),
          vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x.b), vshlq_n_s32(n.b, 23)))};
}
static inline float max_of(F8 x) {
  float v[8];
  store(v, x);
  float m = v[0];
  for (int i = 1; i < 8; i++) m = v[i] > m ? v[i] : m;
  return m;
}
static inline float sum_of(F8 x) {  // halves, then quarters, then pairs
  const float32x4_t q = vaddq_f32(x.a, x.b);
  const float32x2_t d = vadd_f32(vget_low_f32(q), vget_high_f32(q));
  return vget_lane_f32(d, 0) + vget_lane_f32(d, 1);
}
static inline std::int32_t sum_of(I8 x) { return vaddvq_s32(vaddq_s32(x.a, x.b)); }
static inline int16x8_t words_of(I8 x) { return vcombine_s16(vmovn_s32(x.a), vmovn_s32(x.b)); }
static inline void store_words(std::int16_t* p, const I8* q) {
  for (int i = 0; i < 4; i++) vst1q_s16(p + 8 * i, words_of(q[i]));
}
static inline void store_bytes(std::int8_t* p, const I8* q) {
  for (int i = 0; i < 4; i++) vst1_s8(p + 8 * i, vmovn_s16(words_of(q[i])));
}
static inline void prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace selfspec::SET
