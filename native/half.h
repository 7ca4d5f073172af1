// Scalar arithmetic with exactly the results of the vector units: half precision, fused multiply-add.
#pragma once
#include <cstdint>
#include <cstring>

// Everything here is `static`: it is compiled for several instruction sets, and the linker must not mix them.
namespace selfspec {

// Numbers of a cache, which the vector units open and round.
struct Half { std::uint16_t bits; };
struct Bfloat { std::uint16_t bits; };
struct Level { std::int8_t level; };  // of a quantised number

static inline std::uint32_t bits_of(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}
static inline float float_of(std::uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

static inline float from_bfloat(std::uint16_t h) { return float_of(std::uint32_t{h} << 16); }

// Nearest, ties to even; a NaN stays one.
static inline std::uint16_t to_bfloat(float x) {
  std::uint32_t u = bits_of(x);
  if ((u & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(u >> 16 | 64);
  return static_cast<std::uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float from_half(std::uint16_t h) {
  const std::uint32_t sign = std::uint32_t{h & 0x8000u} << 16, rest = h & 0x7fffu;
  if (rest >= 0x7c00) return float_of(sign | 0x7f800000 | (rest & 0x3ff) << 13 | ((rest & 0x3ff) ? 0x400000 : 0));
  if (rest >= 0x400) return float_of(sign | ((rest << 13) + (112u << 23)));
  return float_of(sign | bits_of(static_cast<float>(rest) * 0x1p-24f));  // subnormal or zero: exact
}

// Nearest, ties to even; beyond the range infinity.
static inline std::uint16_t to_half(float x) {
  const std::uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, rest = u & 0x7fffffff;
  if (rest > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00 | (rest >> 13 & 0x3ff));
  if (rest >= 0x477ff000) return static_cast<std::uint16_t>(sign | 0x7c00);
  if (rest < 0x38800000)  // subnormal: adding 0.5 leaves its bits, rounded, at the end of the mantissa
    return static_cast<std::uint16_t>(sign | (bits_of(float_of(rest) + 0.5f) - 0x3f000000));
  return static_cast<std::uint16_t>(sign | (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13);
}

// a * b + c, rounded once.
static inline float fused(float a, float b, float c) {
#ifdef FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  // Rounding to odd in double, then to float, is rounding once (Boldo and Melquiond 2008). The product is exact.
  const double product = static_cast<double>(a) * b, sum = product + c, part = sum - product;
  const double error = (product - (sum - part)) + (c - part);
  std::uint64_t u;
  std::memcpy(&u, &sum, 8);
  if ((error > 0 || error < 0) && !(u & 1)) u += (error > 0) == (sum > 0) ? 1 : -1;
  double odd;
  std::memcpy(&odd, &u, 8);
  return static_cast<float>(odd);
#endif
}

}  // namespace selfspec
