// A set whose widest vector has eight numbers. Included per instruction set.

using Wide = F8;  // what products and attention are made of
using WideInt = I8;
constexpr int LANES = 8;             // numbers of a Wide
constexpr int PARTS = GROUP / LANES; // vectors of a group

static inline Wide all(float x) { return set1(x); }
template <class P> static inline Wide wide(const P* p) { return load(p); }
template <class V> static inline F8 same(float x) { return set1(x); }
template <class V> static inline F8 same_half(const std::uint16_t* p) { return set1_half(*p); }
template <class V, class P> static inline F8 get(const P* p) { return load(p); }
