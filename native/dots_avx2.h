// Products with the eights of AVX2. SELFSPEC_AVX_VNNI: compiled with AVX_VNNI, which sums integer products in one
// instruction; they are exact, so the bits are the same.
#pragma once
#include "simd_avx2.h"

namespace selfspec::SET {

constexpr int TILE_ROWS = 6;  // of a product
constexpr int VECTORS = 6;    // query vectors of a tile of attention

#include "eights.inl"

// sums + products of pairs of words, of quads of bytes (unsigned, signed), and what the latter's sums come to.
#ifdef SELFSPEC_AVX_VNNI
static inline __m256i add_pairs(__m256i sums, __m256i w, __m256i x) { return _mm256_dpwssd_avx_epi32(sums, w, x); }
static inline __m256i add_quads(__m256i sums, __m256i w, __m256i x) { return _mm256_dpbusd_avx_epi32(sums, w, x); }
static inline __m256i whole(__m256i sums) { return sums; }
#else
static inline __m256i add_pairs(__m256i sums, __m256i w, __m256i x) { return _mm256_add_epi32(sums, _mm256_madd_epi16(w, x)); }
static inline __m256i add_quads(__m256i sums, __m256i w, __m256i x) {  // at most 16 * 15 * 127 a lane: fits int16
  return _mm256_add_epi16(sums, _mm256_maddubs_epi16(w, x));
}
static inline __m256i whole(__m256i sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
#endif

template <Kind kind> static inline void weights(const std::uint8_t* w, int k, Wide (&v)[PARTS]) {
  if constexpr (kind == Kind::fp32) {
    const float* p = reinterpret_cast<const float*>(w) + k * 16;
    v[0] = load(p), v[1] = load(p + 8);
    keep(v[0]), keep(v[1]);
  } else if constexpr (kind == Kind::fp16) {
    const std::uint16_t* p = reinterpret_cast<const std::uint16_t*>(w) + k * 16;
    v[0] = load(p), v[1] = load(p + 8);
  } else {
    I8 both{load32(w + k * 32)};
    keep(both);
    v[0] = {_mm256_castsi256_ps(_mm256_slli_epi32(both.v, 16))};
    v[1] = {_mm256_castsi256_ps(_mm256_and_si256(both.v, _mm256_set1_epi32(static_cast<int>(0xffff0000))))};
  }
}

template <int R> static inline void dot_int8(const std::uint8_t* w, const std::int16_t* a, I8 (&c)[R][2]) {
  UNROLL for (int p = 0; p < 16; p++) {
    const __m256i w0 = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w + p * 32)));
    const __m256i w1 = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w + p * 32 + 16)));
    UNROLL for (int t = 0; t < R; t++) {
      const __m256i x = four(a + t * 32 + p * 2);
      if (!p) c[t][0].v = c[t][1].v = _mm256_setzero_si256();
      c[t][0].v = add_pairs(c[t][0].v, w0, x), c[t][1].v = add_pairs(c[t][1].v, w1, x);
      keep(c[t][0]), keep(c[t][1]);
    }
  }
}

template <int R> static inline void dot_int4(const std::uint8_t* w, const std::int8_t* a, I8 (&c)[R][2]) {
  const __m256i mask = _mm256_set1_epi8(15);
  UNROLL for (int q = 0; q < 8; q++) {
    I8 both{load32(w + q * 32)};
    keep(both);
    const __m256i w0 = _mm256_and_si256(both.v, mask), w1 = _mm256_and_si256(_mm256_srli_epi16(both.v, 4), mask);
    UNROLL for (int t = 0; t < R; t++) {
      const __m256i x = four(a + t * 32 + q * 4);
      if (!q) c[t][0].v = c[t][1].v = _mm256_setzero_si256();
      c[t][0].v = add_quads(c[t][0].v, w0, x), c[t][1].v = add_quads(c[t][1].v, w1, x);
      keep(c[t][0]), keep(c[t][1]);
    }
  }
  UNROLL for (int t = 0; t < R; t++) UNROLL for (int j = 0; j < 2; j++) c[t][j].v = whole(c[t][j].v);
}

}  // namespace selfspec::SET
