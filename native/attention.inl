// Attention of rows over their own paths. Included per instruction set.
// A path is cut into segments of 128 positions. Within one, the score of a position depends on nothing but its
// query and key, and values are added position by position; segments are folded in order. So a result depends
// on the path alone: not on where its cells lie, nor on rows beside it. With a window a row sees the end of its
// path only; what lies before it is left out, not weighted with 0.

template <class E> constexpr bool has_scales = sizeof(E) == sizeof(Level);
// Elements from one key or value to the next; a block of keys is 16 of them.
template <class E> static int stride_of(const Heads& h) { return h.padded + (has_scales<E> ? 2 : 0); }
// The scales behind the numbers of a block of keys, or of a value.
template <class E> static const std::uint16_t* scales_behind(const E* p, int count) {
  return reinterpret_cast<const std::uint16_t*>(p + count);
}

// LANES numbers of a block of keys from the i-th on, or numbers of a value from `d` on, as many as a V has.
template <class E> static inline Wide key_numbers(const E* k, const Heads& h, int i) {
  if constexpr (has_scales<E>) return mul(wide(k + i), wide(scales_behind(k, 16 * h.padded) + i % 16));
  else return wide(k + i);
}
template <class V, class E> static inline V value_scale(const E* v, const Heads& h) {
  if constexpr (has_scales<E>) return same_half<V>(scales_behind(v, h.padded));
  else return V{};
}
template <class V, class E> static inline V value_numbers(const E* v, int d, V scale) {
  if constexpr (has_scales<E>) return mul(get<V>(v + d), scale);
  else return get<V>(v + d);
}

// A block of keys, or `count` values, in float32 without gaps. With scales a number is level * scale, rounded once:
// here, and where levels are read as they lie.
template <class E> static const float* opened_keys(const E* k, const Heads& h, float* buffer) {
  if constexpr (sizeof(E) == sizeof(float)) return k;
  for (int i = 0; i < 16 * h.padded; i += LANES) store(buffer + i, key_numbers(k, h, i));
  return buffer;
}
template <class E> static const float* opened_values(const E* v, int count, const Heads& h, float* buffer) {
  if constexpr (sizeof(E) == sizeof(float)) return v;
  for (int c = 0; c < count; c++, v += stride_of<E>(h)) {
    const F8 scale = value_scale<F8>(v, h);
    for (int d = 0; d < h.padded; d += 8) store(buffer + c * h.padded + d, value_numbers(v, d, scale));
  }
  return buffer;
}

// sums[i][j] += x(j) * y(i). The fewer of both stay in registers, so that with 12 sums 16 are enough.
template <class V, int Q, int N, class Y, class X> static inline void outer(V (&sums)[Q][N], Y y, X x) {
  V kept[Q < N ? Q : N];
  UNROLL for (int i = 0; i < (Q < N ? Q : N); i++) {
    kept[i] = Q < N ? y(i) : x(i);
    keep(kept[i]);
  }
  if constexpr (Q < N) {
    UNROLL for (int j = 0; j < N; j++) {
      V other = x(j);
      keep(other);
      UNROLL for (int i = 0; i < Q; i++) sums[i][j] = fma(other, kept[i], sums[i][j]);
    }
  } else {
    UNROLL for (int i = 0; i < Q; i++) {
      const V other = y(i);
      UNROLL for (int j = 0; j < N; j++) sums[i][j] = fma(kept[j], other, sums[i][j]);
    }
  }
}

// Scores of the cells of B blocks for Q query vectors, q [padded][Q]; out[i * SEGMENT + cell].
template <class E, int Q, int B> static void scores(const E* k, const float* q, const Heads& h, float* out) {
  constexpr int N = B * PARTS;
  Wide sums[Q][N];
  UNROLL for (int i = 0; i < Q; i++) UNROLL for (int j = 0; j < N; j++) sums[i][j] = all(0);
  const E* second = k + 16 * stride_of<E>(h);
  for (int d = 0; d < h.padded; d++, q += Q)
    outer(sums, [&](int i) { return all(q[i]); },
          [&](int j) { return key_numbers(j < PARTS ? k : second, h, d * 16 + j % PARTS * LANES); });
  const Wide scale = all(h.scale);
  UNROLL for (int i = 0; i < Q; i++)
    UNROLL for (int j = 0; j < N; j++) store(out + i * SEGMENT + LANES * j, mul(sums[i][j], scale));
}

// Query vectors, `stride` apart, as `scores_of` reads them: in sets of VECTORS, and in the last one what is left.
static void interleave(int n, const float* from, int padded, float* to) {
  for (int i = 0; i < n; i += VECTORS) {
    const int count = n - i < VECTORS ? n - i : VECTORS;
    for (int d = 0; d < padded; d++)
      for (int j = 0; j < count; j++) *to++ = from[(i + j) * padded + d];
  }
}

// Adds `count` positions, p [Q][SEGMENT] their weights, to o [Q][stride]: D vectors of dimensions from `d` on.
template <class V, class E, int Q, int D>
static void add_values(const E* v, const float* p, int count, const Heads& h, int d, float* o, std::size_t stride) {
  constexpr int step = sizeof(V) / sizeof(float);
  V sums[Q][D];
  UNROLL for (int i = 0; i < Q; i++) UNROLL for (int j = 0; j < D; j++) sums[i][j] = get<V>(o + i * stride + d + step * j);
  for (int c = 0; c < count; c++) {
    const E* cell = v + static_cast<std::size_t>(c) * stride_of<E>(h);
    const V scale = value_scale<V>(cell, h);
    outer(sums, [&](int i) { return same<V>(p[i * SEGMENT + c]); },
          [&](int j) { return value_numbers(cell, d + step * j, scale); });
  }
  UNROLL for (int i = 0; i < Q; i++) UNROLL for (int j = 0; j < D; j++) store(o + i * stride + d + step * j, sums[i][j]);
}

template <class E, int Q>
static void values(const E* v, const float* p, int count, const Heads& h, float* o, std::size_t stride) {
  constexpr int many = Q <= 3 ? 4 : 2;
  int d = 0;
  for (; d + LANES * many <= h.padded; d += LANES * many) add_values<Wide, E, Q, many>(v, p, count, h, d, o, stride);
  for (; d + LANES <= h.padded; d += LANES) add_values<Wide, E, Q, 1>(v, p, count, h, d, o, stride);
  if (d < h.padded) add_values<F8, E, Q, 1>(v, p, count, h, d, o, stride);
}

template <class E, int B = 1, int Q = VECTORS>
static void scores_of(int n, const E* k, const float* q, const Heads& h, float* out) {
  if constexpr (Q > 1)
    if (n < Q) return scores_of<E, B, Q - 1>(n, k, q, h, out);
  for (; n >= Q; n -= Q, q += Q * h.padded, out += Q * SEGMENT) {
    if constexpr (B * Q <= VECTORS) {
      scores<E, Q, B>(k, q, h, out);
    } else {  // too many sums for the registers
      for (int b = 0; b < B; b++) scores<E, Q, 1>(k + b * 16 * stride_of<E>(h), q, h, out + b * 16);
    }
  }
  if constexpr (Q > 1)
    if (n) scores_of<E, B, Q - 1>(n, k, q, h, out);
}
template <class E, int Q = VECTORS>
static void values_of(int n, const E* v, const float* p, int count, const Heads& h, float* o, std::size_t stride) {
  if constexpr (Q > 1)
    if (n < Q) return values_of<E, Q - 1>(n, v, p, count, h, o, stride);
  for (; n >= Q; n -= Q, p += Q * SEGMENT, o += Q * stride) values<E, Q>(v, p, count, h, o, stride);
  if constexpr (Q > 1)
    if (n) values_of<E, Q - 1>(n, v, p, count, h, o, stride);
}

// s [first, n) becomes exp(s - max), what is before and behind 0; maximum and sum go behind the sums of the values.
static void soften(float* s, int first, int n, float cap, float* state) {
  const int padded = round_up(n, 8);
  if (cap > 0.0f)
    for (int i = first / 8 * 8; i < padded; i += 8) store(s + i, capped(load(s + i), cap));
  for (int i = 0; i < first; i++) s[i] = -1e30f;
  for (int i = n; i < padded; i++) s[i] = -1e30f;
  F8 most = set1(-1e30f), sum = set1(0);
  for (int i = 0; i < padded; i += 8) most = max(most, load(s + i));
  const float top = max_of(most);
  for (int i = 0; i < padded; i += 8) {
    const F8 e = exponential(sub(load(s + i), set1(top)));
    store(s + i, e);
    sum = add(sum, e);
  }
  state[0] = top, state[1] = sum_of(sum);
}

// sums += segment, both relative to their own maxima.
static void merge(float* sums, const float* segment, int padded) {
  const float m0 = sums[padded], m1 = segment[padded], top = m0 > m1 ? m0 : m1;
  alignas(32) float change[8] = {m0 - top, m1 - top, 0, 0, 0, 0, 0, 0};
  store(change, exponential(load(change)));
  const F8 a = set1(change[0]), b = set1(change[1]);
  for (int d = 0; d < padded; d += 8) store(sums + d, fma(load(segment + d), b, mul(load(sums + d), a)));
  sums[padded] = top;
  sums[padded + 1] = fused(segment[padded + 1], change[1], sums[padded + 1] * change[0]);
}

// 1 / (sum + exp(sink - max)), both relative to the larger of sink and max, in whose terms the values are scaled.
static float with_sink(const float* state, float sink) {
  const float top = state[0] > sink ? state[0] : sink;
  alignas(32) float change[8] = {state[0] - top, sink - top, 0, 0, 0, 0, 0, 0};
  store(change, exponential(load(change)));
  return change[0] / fused(state[1], change[0], change[1]);
}

static void fold(const float* partials, int count, const Heads& h, const float* sink, float* work, float* out) {
  const int stride = h.padded + 8;
  std::memcpy(work, partials, sizeof(float) * stride);
  for (int i = 1; i < count; i++) merge(work, partials + i * stride, h.padded);
  const F8 inverse = set1(sink ? with_sink(work + h.padded, *sink) : 1.0f / work[h.padded + 1]);
  alignas(32) float last[8];
  for (int d = 0; d < h.width; d += 8) {
    const F8 v = mul(load(work + d), inverse);
    if (d + 8 <= h.width) {
      store(out + d, v);
    } else {
      store(last, v);
      std::memcpy(out + d, last, sizeof(float) * (h.width - d));
    }
  }
}

// The memory of one attend: scores and sums of all query vectors of the tile, two opened blocks, one block's scores.
template <class E> struct Work {
  const Attend& task;
  const Heads& h;
  const E* keys;
  const E* vals;
  float *weights, *sums, *buffer, *lanes, *queries;
  std::size_t stride;  // of sums

  Work(const Attend& t, const Heads& heads)
      : task(t), h(heads), keys(static_cast<const E*>(t.keys)), vals(static_cast<const E*>(t.values)) {
    const int vectors = t.rows * h.group;
    stride = h.padded + 8;
    weights = t.scratch;
    sums = weights + vectors * SEGMENT;
    queries = sums + vectors * stride;
    buffer = queries + vectors * h.padded;
    lanes = buffer + (h.group > 16 ? h.group : 16) * h.padded;
    for (int r = 0; r < t.rows; r++)
      std::memcpy(sums + r * h.group * h.padded, query(r), sizeof(float) * h.group * h.padded);
    interleave(vectors, sums, h.padded, queries);
  }
  const float* query(int r) const { return task.queries + r * task.query_stride; }
  int first(int r, int low) const { return clipped(task.paths[r].first, low); }
  int direct(int r, int low) const { return clipped(task.paths[r].direct, low); }
  int length(int r, int low) const { return clipped(task.paths[r].length, low); }
  std::size_t place(std::int64_t cell) const { return static_cast<std::size_t>(cell < task.places ? cell : cell % task.places); }
  const E* key_block(std::int64_t cell) const { return keys + place(cell) / 16 * 16 * stride_of<E>(h); }
  const E* value(std::int64_t cell) const { return vals + place(cell) * stride_of<E>(h); }
  static int clipped(int end, int low) { return end - low < 0 ? 0 : end - low < SEGMENT ? end - low : SEGMENT; }

  void score(int low) {
    int from = SEGMENT, most = 0;
    for (int r = 0; r < task.rows; r++) {
      from = first(r, low) < from ? first(r, low) : from;
      most = direct(r, low) > most ? direct(r, low) : most;
    }
    from = from / 16 * 16;
    const E* k = key_block(low) + static_cast<std::size_t>(from) * stride_of<E>(h);  // a segment lies in one piece
    const E* v = value(low);
    for (int b = from; b < most; b += 16, k += 16 * stride_of<E>(h)) {
      ahead(v + b * stride_of<E>(h));
      if (task.rows > 1) {
        scores_of(task.rows * h.group, opened_keys(k, h, buffer), queries, h, weights + b);
      } else if (b + 16 < most) {  // two blocks: enough independent sums for a single row
        ahead(v + (b + 16) * stride_of<E>(h));
        scores_of<E, 2>(h.group, k, queries, h, weights + b);
        b += 16, k += 16 * stride_of<E>(h);
      } else {
        scores_of(h.group, k, queries, h, weights + b);
      }
    }
    for (int r = 0; r < task.rows; r++) score_tail(r, low);
  }
  // Scattered cells: score their whole blocks, and take the lanes that are wanted.
  void score_tail(int r, int low) {
    const Path& path = task.paths[r];
    const E* there = nullptr;
    int i = direct(r, low) > first(r, low) ? direct(r, low) : first(r, low);
    if (i >= length(r, low)) return;
    interleave(h.group, query(r), h.padded, buffer);
    for (; i < length(r, low); i++) {
      const std::int64_t cell = path.tail[low + i - path.direct];
      const E* block = key_block(cell);
      if (block != there) scores_of(h.group, block, buffer, h, lanes);
      there = block;
      for (int g = 0; g < h.group; g++) weights[(r * h.group + g) * SEGMENT + i] = lanes[g * SEGMENT + cell % 16];
    }
  }
  bool sees(int r, int low) const { return length(r, low) > first(r, low); }
  void soften_all(int low) {
    std::memset(sums, 0, sizeof(float) * task.rows * h.group * stride);
    for (int r = 0; r < task.rows; r++)
      for (int i = r * h.group; sees(r, low) && i < (r + 1) * h.group; i++)
        soften(weights + i * SEGMENT, first(r, low), length(r, low), h.cap, sums + i * stride + h.padded);
  }
  // Positions that all rows see are added for all of them at once; before and behind, each row has its own.
  // `next` are the keys that will be read after these values.
  void add_all(int low, const E* next) {
    int from = 0, common = SEGMENT;
    for (int r = 0; r < task.rows; r++) {
      from = first(r, low) > from ? first(r, low) : from;
      common = direct(r, low) < common ? direct(r, low) : common;
    }
    if (from > common) from = common;
    const E* v = value(low);
    for (int r = 0; r < task.rows; r++) add_direct(r, low, first(r, low), from < direct(r, low) ? from : direct(r, low));
    for (int b = from; b < common;) {
      const int end = (b / 16 + 1) * 16, count = (end < common ? end : common) - b;
      if (next) ahead(next + b / 16 * 16 * stride_of<E>(h));
      const E* cells = v + b * stride_of<E>(h);
      if (task.rows == 1) values_of(h.group, cells, weights + b, count, h, sums, stride);
      else values_of(task.rows * h.group, opened_values(cells, count, h, buffer), weights + b, count, h, sums, stride);
      b += count;
    }
    for (int r = 0; r < task.rows; r++) add_rest(r, low, common > first(r, low) ? common : first(r, low));
  }
  void add_direct(int r, int low, int begin, int end) {
    if (begin >= end) return;
    const float* p = weights + r * h.group * SEGMENT + begin;
    values_of(h.group, value(low) + static_cast<std::size_t>(begin) * stride_of<E>(h), p, end - begin, h, sums + r * h.group * stride, stride);
  }
  void add_rest(int r, int low, int done) {
    const Path& path = task.paths[r];
    const int plain = direct(r, low);
    add_direct(r, low, done, plain);
    for (int i = plain > done ? plain : done; i < length(r, low); i++)
      values_of(h.group, value(path.tail[low + i - path.direct]), weights + r * h.group * SEGMENT + i, 1, h,
                sums + r * h.group * stride, stride);
  }
  void put(int segment) {
    for (int r = 0; r < task.rows; r++) {
      if (!sees(r, segment * SEGMENT)) continue;
      const int before = segment - task.paths[r].first / SEGMENT;  // segments that the row has seen
      for (int g = 0; g < h.group; g++) {
        float* out = task.partials + r * task.row_stride + g * task.head_stride;
        const float* own = sums + (r * h.group + g) * stride;
        if (task.folded && before) merge(out, own, h.padded);
        else std::memcpy(out + (task.folded ? 0 : before * stride), own, sizeof(float) * (h.padded + 2));
      }
    }
  }
  void ahead(const E* p) const {
    for (std::size_t i = 0; i < 16 * stride_of<E>(h) * sizeof(E); i += 64) prefetch(reinterpret_cast<const char*>(p) + i);
  }
};

template <class E> static void attend_as(const Attend& task, const Heads& h) {
  Work<E> work(task, h);
  for (int segment = task.first; segment < task.last; segment++) {
    const int low = segment * SEGMENT;
    const E* next = static_cast<const E*>(task.next);
    if (segment + 1 < task.last) next = work.key_block(low + SEGMENT);
    work.score(low), work.soften_all(low), work.add_all(low, next), work.put(segment);
  }
}

static void attend(const Attend& task, const Heads& h) {
  switch (task.element) {
    case Element::fp16: return attend_as<Half>(task, h);
    case Element::bf16: return attend_as<Bfloat>(task, h);
    case Element::fp32: return attend_as<float>(task, h);
    case Element::int8: return attend_as<Level>(task, h);
  }
}
