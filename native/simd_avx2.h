// Eight floats or integers of AVX2, FMA and F16C.
#pragma once
#include <immintrin.h>

#include "half.h"
#include "kinds.h"

#define UNROLL _Pragma("GCC unroll 32")

namespace selfspec::SET {

struct F8 { __m256 v; };
struct I8 { __m256i v; };

// GCC would otherwise collect all products first and spill them, or load a value anew for every use.
static inline void keep(F8& a) { asm("" : "+x"(a.v)); }
static inline void keep(I8& a) { asm("" : "+x"(a.v)); }

static inline F8 set1(float x) { return {_mm256_set1_ps(x)}; }
static inline F8 set1_half(std::uint16_t bits) { return {_mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(bits)))}; }
static inline F8 load(const float* p) { return {_mm256_loadu_ps(p)}; }
static inline F8 load(const std::uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
static inline F8 load(const Half* p) { return load(&p->bits); }
static inline F8 load(const Bfloat* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
}
static inline F8 load(const Level* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
static inline void store(float* p, F8 a) { _mm256_storeu_ps(p, a.v); }
static inline void store(Half* p, F8 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
// Nearest, ties to even; a NaN stays one.
static inline void store(Bfloat* p, F8 a) {
  const __m256i u = _mm256_castps_si256(a.v), high = _mm256_srli_epi32(u, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
  const __m256i words = _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(64)), is_nan);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
static inline F8 add(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
static inline F8 sub(F8 a, F8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
static inline F8 mul(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
static inline F8 div(F8 a, F8 b) { return {_mm256_div_ps(a.v, b.v)}; }
static inline F8 max(F8 a, F8 b) { return {_mm256_max_ps(a.v, b.v)}; }
static inline F8 min(F8 a, F8 b) { return {_mm256_min_ps(a.v, b.v)}; }
static inline F8 abs(F8 a) { return {_mm256_and_ps(a.v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)))}; }
static inline F8 fma(F8 a, F8 b, F8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
static inline F8 fnma(F8 a, F8 b, F8 c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }
static inline F8 at_least(F8 a, F8 x, float low) {
  return {_mm256_and_ps(a.v, _mm256_cmp_ps(x.v, _mm256_set1_ps(low), _CMP_GE_OQ))};
}
static inline F8 round(F8 a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
static inline I8 to_int(F8 a) { return {_mm256_cvtps_epi32(a.v)}; }
static inline F8 to_float(I8 a) { return {_mm256_cvtepi32_ps(a.v)}; }
static inline F8 scale2(F8 a, I8 n) {
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.v), _mm256_slli_epi32(n.v, 23)))};
}
static inline float max_of(F8 a) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}
static inline float sum_of(F8 a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
static inline std::int32_t sum_of(I8 a) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
static inline void store_words(std::int16_t* p, const I8* q) {
  for (int h = 0; h < 2; h++)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 16 * h),
                        _mm256_permute4x64_epi64(_mm256_packs_epi32(q[2 * h].v, q[2 * h + 1].v), 0xd8));
}
static inline void store_bytes(std::int8_t* p, const I8* q) {
  const __m256i b = _mm256_packs_epi16(_mm256_packs_epi32(q[0].v, q[1].v), _mm256_packs_epi32(q[2].v, q[3].v));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm256_permutevar8x32_epi32(b, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}
static inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

static inline __m256i load32(const std::uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
static inline __m256i four(const void* p) {
  std::int32_t x;
  std::memcpy(&x, p, 4);
  return _mm256_set1_epi32(x);
}

}  // namespace selfspec::SET
