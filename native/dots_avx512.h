// Sixteen floats or integers of AVX-512, for products and attention; steps on one row have the eights of AVX2.
// SELFSPEC_AVX512_VNNI: compiled with AVX512_VNNI, which sums integer products in one instruction; they are exact, so
// the bits are the same.
#pragma once
#include <type_traits>

#include "simd_avx2.h"

namespace selfspec::SET {

constexpr int TILE_ROWS = 12;  // of a product
constexpr int VECTORS = 12;    // query vectors of a tile of attention

struct Wide { __m512 v; };
struct WideInt { __m512i v; };
constexpr int LANES = 16;             // numbers of a Wide
constexpr int PARTS = GROUP / LANES;  // vectors of a group

static inline void keep(Wide& a) { asm("" : "+v"(a.v)); }

static inline Wide all(float x) { return {_mm512_set1_ps(x)}; }
static inline Wide wide(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline Wide wide(const std::uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline Wide wide(const Half* p) { return wide(&p->bits); }
static inline Wide wide(const Bfloat* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(&p->bits));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
static inline Wide wide(const Level* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// For loops over vectors of either width.
template <class V> static inline V same(float x) {
  if constexpr (std::is_same_v<V, Wide>) return all(x);
  else return set1(x);
}
template <class V> static inline V same_half(const std::uint16_t* p) {
  if constexpr (std::is_same_v<V, Wide>) return {_mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(*p)))};
  else return set1_half(*p);
}
template <class V, class P> static inline V get(const P* p) {
  if constexpr (std::is_same_v<V, Wide>) return wide(p);
  else return load(p);
}
static inline void store(float* p, Wide a) { _mm512_storeu_ps(p, a.v); }
static inline Wide mul(Wide a, Wide b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline Wide fma(Wide a, Wide b, Wide c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline Wide to_float(WideInt a) { return {_mm512_cvtepi32_ps(a.v)}; }

// 32 bytes in both halves of a vector.
static inline __m512i twice(const std::uint8_t* p) { return _mm512_broadcast_i64x4(load32(p)); }
static inline __m512i all_four(const void* p) {
  std::int32_t x;
  std::memcpy(&x, p, 4);
  return _mm512_set1_epi32(x);
}

template <Kind kind> static inline void weights(const std::uint8_t* w, int k, Wide (&v)[PARTS]) {
  if constexpr (kind == Kind::fp32) {
    v[0] = wide(reinterpret_cast<const float*>(w) + k * 16);
  } else if constexpr (kind == Kind::fp16) {
    v[0] = wide(reinterpret_cast<const std::uint16_t*>(w) + k * 16);
  } else {  // low halves of the words move up, high ones stay
    const __m512i up = _mm512_inserti64x4(_mm512_set1_epi32(16), _mm256_setzero_si256(), 1);
    const __m512i words = _mm512_sllv_epi32(twice(w + k * 32), up);
    v[0] = {_mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
  }
  keep(v[0]);
}

template <int R> static inline void dot_int8(const std::uint8_t* w, const std::int16_t* a, WideInt (&c)[R][PARTS]) {
  UNROLL for (int t = 0; t < R; t++) c[t][0].v = _mm512_setzero_si512();
  UNROLL for (int p = 0; p < 16; p++) {
    const __m512i pairs = _mm512_cvtepi8_epi16(load32(w + p * 32));
    UNROLL for (int t = 0; t < R; t++) {
      const __m512i x = all_four(a + t * 32 + p * 2);
#ifdef SELFSPEC_AVX512_VNNI
      c[t][0].v = _mm512_dpwssd_epi32(c[t][0].v, pairs, x);
#else
      c[t][0].v = _mm512_add_epi32(c[t][0].v, _mm512_madd_epi16(pairs, x));
#endif
    }
  }
}

template <int R> static inline void dot_int4(const std::uint8_t* w, const std::int8_t* a, WideInt (&c)[R][PARTS]) {
  const __m512i down = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi32(4), 1);
  const __m512i mask = _mm512_set1_epi8(15);
  UNROLL for (int t = 0; t < R; t++) c[t][0].v = _mm512_setzero_si512();
  UNROLL for (int q = 0; q < 8; q++) {
    const __m512i quads = _mm512_and_si512(_mm512_srlv_epi32(twice(w + q * 32), down), mask);
    UNROLL for (int t = 0; t < R; t++) {
      const __m512i x = all_four(a + t * 32 + q * 4);
#ifdef SELFSPEC_AVX512_VNNI
      c[t][0].v = _mm512_dpbusd_epi32(c[t][0].v, quads, x);
#else
      c[t][0].v = _mm512_add_epi16(c[t][0].v, _mm512_maddubs_epi16(quads, x));  // at most 16 * 15 * 127: fits int16
#endif
    }
  }
#ifndef SELFSPEC_AVX512_VNNI
  UNROLL for (int t = 0; t < R; t++) c[t][0].v = _mm512_madd_epi16(c[t][0].v, _mm512_set1_epi16(1));
#endif
}

}  // namespace selfspec::SET
