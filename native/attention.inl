// Attention of rows over their own paths. Included per instruction set.
// A path is cut into segments of 128 positions. Within one, the score of a position depends on nothing but its
// query and key, and values are added position by position; segments are folded in order. So a result depends
// on the path alone: not on where its cells lie, nor on rows beside it.

template <class E> static const float* opened(const E* p, int count, float* buffer) {
  if constexpr (sizeof(E) == sizeof(float)) {
    return p;
  } else {
    for (int i = 0; i < count; i += 8) store(buffer + i, load(p + i));
    return buffer;
  }
}

// sums[i][j] += x(j) * y(i). The fewer of both stay in registers, so that with 12 sums 16 are enough.
template <int Q, int N, class Y, class X> static inline void outer(F8 (&sums)[Q][N], Y y, X x) {
  F8 kept[Q < N ? Q : N];
  UNROLL for (int i = 0; i < (Q < N ? Q : N); i++) {
    kept[i] = Q < N ? y(i) : x(i);
    keep(kept[i]);
  }
  if constexpr (Q < N) {
    UNROLL for (int j = 0; j < N; j++) {
      F8 other = x(j);
      keep(other);
      UNROLL for (int i = 0; i < Q; i++) sums[i][j] = fma(other, kept[i], sums[i][j]);
    }
  } else {
    UNROLL for (int i = 0; i < Q; i++) {
      const F8 other = y(i);
      UNROLL for (int j = 0; j < N; j++) sums[i][j] = fma(kept[j], other, sums[i][j]);
    }
  }
}

// Scores of the cells of B blocks for Q query vectors, q [padded][Q]; out[i * SEGMENT + cell].
template <class E, int Q, int B> static void scores(const E* k, const float* q, const Heads& h, float* out) {
  F8 sums[Q][2 * B];
  UNROLL for (int i = 0; i < Q; i++) UNROLL for (int j = 0; j < 2 * B; j++) sums[i][j] = set1(0);
  const E* second = k + 16 * h.padded;
  for (int d = 0; d < h.padded; d++, k += 16, second += 16, q += Q)
    outer<Q, 2 * B>(sums, [&](int i) { return set1(q[i]); }, [&](int j) { return load((j < 2 ? k : second) + j % 2 * 8); });
  const F8 scale = set1(h.scale);
  UNROLL for (int i = 0; i < Q; i++)
    UNROLL for (int j = 0; j < 2 * B; j++) store(out + i * SEGMENT + 8 * j, mul(sums[i][j], scale));
}

// Query vectors, `stride` apart, as `scores_of` reads them: in sets of VECTORS, and in the last one what is left.
static void interleave(int n, const float* from, int padded, float* to) {
  for (int i = 0; i < n; i += VECTORS) {
    const int count = n - i < VECTORS ? n - i : VECTORS;
    for (int d = 0; d < padded; d++)
      for (int j = 0; j < count; j++) *to++ = from[(i + j) * padded + d];
  }
}

// Adds `count` positions, p [Q][SEGMENT] their weights, to o [Q][stride]: D vectors of 8 dimensions from `d` on.
template <class E, int Q, int D>
static void add_values(const E* v, const float* p, int count, const Heads& h, int d, float* o, std::size_t stride) {
  F8 sums[Q][D];
  UNROLL for (int i = 0; i < Q; i++) UNROLL for (int j = 0; j < D; j++) sums[i][j] = load(o + i * stride + d + 8 * j);
  for (int c = 0; c < count; c++) {
    const E* cell = v + static_cast<std::size_t>(c) * h.padded + d;
    outer<Q, D>(sums, [&](int i) { return set1(p[i * SEGMENT + c]); }, [&](int j) { return load(cell + 8 * j); });
  }
  UNROLL for (int i = 0; i < Q; i++) UNROLL for (int j = 0; j < D; j++) store(o + i * stride + d + 8 * j, sums[i][j]);
}

template <class E, int Q>
static void values(const E* v, const float* p, int count, const Heads& h, float* o, std::size_t stride) {
  constexpr int wide = Q <= 3 ? 4 : 2;
  int d = 0;
  for (; d + 8 * wide <= h.padded; d += 8 * wide) add_values<E, Q, wide>(v, p, count, h, d, o, stride);
  for (; d < h.padded; d += 8) add_values<E, Q, 1>(v, p, count, h, d, o, stride);
}

template <class E, int B = 1, int Q = VECTORS>
static void scores_of(int n, const E* k, const float* q, const Heads& h, float* out) {
  if constexpr (Q > 1)
    if (n < Q) return scores_of<E, B, Q - 1>(n, k, q, h, out);
  for (; n >= Q; n -= Q, q += Q * h.padded, out += Q * SEGMENT) {
    if constexpr (B * Q <= VECTORS) {
      scores<E, Q, B>(k, q, h, out);
    } else {  // too many sums for the registers
      for (int b = 0; b < B; b++) scores<E, Q, 1>(k + b * 16 * h.padded, q, h, out + b * 16);
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

// s [n] becomes exp(s - max); maximum and sum go behind the sums of the values.
static void soften(float* s, int n, float* state) {
  const int padded = round_up(n, 8);
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

static void fold(const float* partials, int count, const Heads& h, float* work, float* out) {
  const int stride = h.padded + 8;
  std::memcpy(work, partials, sizeof(float) * stride);
  for (int i = 1; i < count; i++) merge(work, partials + i * stride, h.padded);
  const F8 inverse = set1(1.0f / work[h.padded + 1]);
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
  int direct(int r, int low) const { return clipped(task.paths[r].direct, low); }
  int length(int r, int low) const { return clipped(task.paths[r].length, low); }
  static int clipped(int end, int low) { return end - low < 0 ? 0 : end - low < SEGMENT ? end - low : SEGMENT; }

  void score(int low) {
    int most = 0;
    for (int r = 0; r < task.rows; r++) most = direct(r, low) > most ? direct(r, low) : most;
    const E* k = keys + static_cast<std::size_t>(low) * h.padded;
    const E* v = vals + static_cast<std::size_t>(low) * h.padded;
    for (int b = 0; b < most; b += 16, k += 16 * h.padded) {
      ahead(v + b * h.padded);
      if (task.rows > 1) {
        scores_of(task.rows * h.group, opened(k, 16 * h.padded, buffer), queries, h, weights + b);
      } else if (b + 16 < most) {  // two blocks: enough independent sums for a single row
        ahead(v + (b + 16) * h.padded);
        scores_of<E, 2>(h.group, k, queries, h, weights + b);
        b += 16, k += 16 * h.padded;
      } else {
        scores_of(h.group, k, queries, h, weights + b);
      }
    }
    for (int r = 0; r < task.rows; r++) score_tail(r, low);
  }
  // Scattered cells: score their whole blocks, and take the lanes that are wanted.
  void score_tail(int r, int low) {
    const Path& path = task.paths[r];
    std::int64_t there = -1;
    if (direct(r, low) == length(r, low)) return;
    interleave(h.group, query(r), h.padded, buffer);
    for (int i = direct(r, low); i < length(r, low); i++) {
      const std::int64_t cell = path.tail[low + i - path.direct], block = cell / 16;
      if (block != there)
        scores_of(h.group, keys + block * 16 * h.padded, buffer, h, lanes);
      there = block;
      for (int g = 0; g < h.group; g++) weights[(r * h.group + g) * SEGMENT + i] = lanes[g * SEGMENT + cell % 16];
    }
  }
  void soften_all(int low) {
    std::memset(sums, 0, sizeof(float) * task.rows * h.group * stride);
    for (int r = 0; r < task.rows; r++)
      for (int i = r * h.group; length(r, low) && i < (r + 1) * h.group; i++)
        soften(weights + i * SEGMENT, length(r, low), sums + i * stride + h.padded);
  }
  // `next` are the keys that will be read after these values.
  void add_all(int low, const E* next) {
    int common = SEGMENT;
    for (int r = 0; r < task.rows; r++) common = direct(r, low) < common ? direct(r, low) : common;
    const E* v = vals + static_cast<std::size_t>(low) * h.padded;
    for (int b = 0; b < common; b += 16, v += 16 * h.padded) {
      const int count = common - b < 16 ? common - b : 16;
      if (next) ahead(next + b * h.padded);
      if (task.rows == 1) values_of(h.group, v, weights + b, count, h, sums, stride);
      else values_of(task.rows * h.group, opened(v, count * h.padded, buffer), weights + b, count, h, sums, stride);
    }
    for (int r = 0; r < task.rows; r++) add_rest(r, low, common);
  }
  void add_rest(int r, int low, int done) {
    const Path& path = task.paths[r];
    float *p = weights + r * h.group * SEGMENT, *o = sums + r * h.group * stride;
    const int plain = direct(r, low);
    if (plain > done)
      values_of(h.group, vals + static_cast<std::size_t>(low + done) * h.padded, p + done, plain - done, h, o, stride);
    for (int i = plain; i < length(r, low); i++)
      values_of(h.group, vals + path.tail[low + i - path.direct] * h.padded, p + i, 1, h, o, stride);
  }
  void put(int segment) {
    for (int r = 0; r < task.rows; r++) {
      if (!length(r, segment * SEGMENT)) continue;
      for (int g = 0; g < h.group; g++) {
        float* out = task.partials + r * task.row_stride + g * task.head_stride;
        const float* own = sums + (r * h.group + g) * stride;
        if (task.folded && segment > task.first) merge(out, own, h.padded);
        else std::memcpy(out + (task.folded ? 0 : segment * stride), own, sizeof(float) * (h.padded + 2));
      }
    }
  }
  void ahead(const E* p) const {
    for (std::size_t i = 0; i < 16 * h.padded * sizeof(E); i += 64) prefetch(reinterpret_cast<const char*>(p) + i);
  }
};

template <class E> static void attend_as(const Attend& task, const Heads& h) {
  Work<E> work(task, h);
  for (int segment = task.first; segment < task.last; segment++) {
    const int low = segment * SEGMENT;
    const E* next = static_cast<const E*>(task.next);
    if (segment + 1 < task.last) next = work.keys + static_cast<std::size_t>(low + SEGMENT) * h.padded;
    work.score(low), work.soften_all(low), work.add_all(low, next), work.put(segment);
  }
}

static void attend(const Attend& task, const Heads& h) {
  if (task.half) attend_as<std::uint16_t>(task, h);
  else attend_as<float>(task, h);
}
