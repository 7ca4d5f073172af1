// Exponential, caps and the activations of MLPs. Included per instruction set.

// exp for x <= 88; exactly 0 below -87. Relative error 2e-7 (Cody-Waite reduction, Taylor to the sixth power).
static inline F8 exponential(F8 x) {
  const F8 c = max(min(x, set1(88.0f)), set1(-87.0f));
  const F8 n = round(mul(c, set1(1.44269504f)));
  const F8 r = fnma(n, set1(-2.12194440e-4f), fnma(n, set1(0.693359375f), c));
  F8 y = set1(1.0f / 720);
  constexpr float terms[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  for (float term : terms) y = fma(y, r, set1(term));
  return at_least(scale2(y, to_int(n)), x, -87.0f);
}

// x * sigmoid(s)
static inline F8 gated_by(F8 x, F8 s) { return div(x, add(exponential(sub(set1(0), s)), set1(1))); }

// cap * tanh(x / cap)
static inline F8 capped(F8 x, float cap) {
  const F8 e = exponential(mul(x, set1(-2.0f / cap)));
  return mul(set1(cap), div(sub(set1(1), e), add(set1(1), e)));
}

// x * Phi(x). With z = |x| / sqrt(2) and t = 1 / (1 + z / 2), erfc(z) is t * exp(P(t) - z^2), where P was fitted to
// a relative error of 5e-8 for z up to 9.3; beyond, the result is 0 or x.
static inline F8 gelu(F8 x) {
  const F8 z = mul(abs(x), set1(0.707106781f)), t = div(set1(1), fma(z, set1(0.5f), set1(1)));
  F8 p = set1(0.13855934f);
  constexpr float terms[] = {-0.64591133f, 1.07399129f, -0.58526688f, -0.17287149f, 0.05093656f,
                             0.01752617f,  0.39025716f, 0.99820588f,  -1.26542665f};
  for (float term : terms) p = fma(p, t, set1(term));
  const F8 beyond = mul(t, exponential(fnma(z, z, p)));  // erfc(z)
  const F8 half = mul(beyond, set1(0.5f));
  return mul(x, add(half, at_least(sub(set1(1), beyond), x, 0.0f)));
}

// 0.5 * (1 + tanh(u)) is sigmoid(2 u)
static inline F8 gelu_tanh(F8 x) {
  const F8 inner = fma(mul(mul(x, x), x), set1(0.044715f), x);
  return gated_by(x, mul(inner, set1(1.59576912f)));
}

static inline F8 activated(F8 x, const Activation& how) {
  switch (how.act) {
    case Act::gelu: return gelu(x);
    case Act::gelu_tanh: return gelu_tanh(x);
    case Act::relu: return max(x, set1(0));
    default: return gated_by(x, x);
  }
}

static inline F8 gate(F8 x, F8 up, const Activation& how) {
  if (how.act != Act::clipped) return mul(activated(x, how), up);
  const F8 limit = set1(how.limit), low = min(x, limit);
  const F8 bound = max(min(up, limit), set1(-how.limit));
  return mul(add(bound, set1(1)), gated_by(low, mul(low, set1(how.sharpness))));
}
