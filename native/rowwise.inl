// Steps on one row: norm, quantisation, rotation, cache stores. Included per instruction set.

static void centre(float* y, int d) {
  F8 sums[2] = {set1(0), set1(0)};
  const int padded = round_up(d, BLOCK);
  for (int i = 0; i < padded; i += 16)
    for (int j = 0; j < 2; j++) sums[j] = add(sums[j], load(y + i + 8 * j));
  const F8 mean = set1(sum_of(add(sums[0], sums[1])) / static_cast<float>(d));
  for (int i = 0; i < padded; i += 8) store(y + i, sub(load(y + i), mean));
  std::memset(y + d, 0, sizeof(float) * (padded - d));  // what fills up the last block has no mean
}

static void norm(const float* x, const NormView& n, float* y) {
  const int d = n.d, padded = round_up(d, BLOCK);
  std::memcpy(y, x, sizeof(float) * d);
  std::memset(y + d, 0, sizeof(float) * (padded - d));
  if (!n.weight) return;
  if (n.centred) centre(y, d);
  F8 sums[4] = {set1(0), set1(0), set1(0), set1(0)};
  for (int i = 0; i < padded; i += 32)
    for (int j = 0; j < 4; j++) {
      const F8 v = load(y + i + 8 * j);
      sums[j] = fma(v, v, sums[j]);
    }
  const float square = sum_of(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
  const F8 factor = set1(1.0f / __builtin_sqrtf(square / static_cast<float>(d) + n.eps));
  for (int i = 0; i < padded; i += 8) {
    const F8 v = mul(mul(load(y + i), factor), load(n.weight + i));
    store(y + i, n.bias ? add(v, load(n.bias + i)) : v);
  }
}

static void quantise(const float* x, float* scales, std::int16_t* words, std::int8_t* bytes) {
  F8 v[4], most = set1(0);
  I8 q[4];
  for (int i = 0; i < 4; i++) {
    v[i] = load(x + 8 * i);
    most = max(most, abs(v[i]));
  }
  const float limit = max_of(most), inverse = limit > 0 ? 127.0f / limit : 0.0f;
  std::int32_t sum = 0;
  for (int i = 0; i < 4; i++) {
    // limit * inverse may round up to a little more than 127, never to 127.5
    q[i] = to_int(mul(v[i], set1(inverse)));
    sum += sum_of(q[i]);
  }
  scales[0] = limit / 127.0f;
  scales[1] = scales[0] * static_cast<float>(sum);
  if (words) store_words(words, q);
  if (bytes) store_bytes(bytes, q);
}

static void prepare(const float* x, int formats, const Acts& acts, int row) {
  const int first = row / PANEL * PANEL, in_panel = acts.rows - first < PANEL ? acts.rows - first : PANEL;
  const std::size_t base = static_cast<std::size_t>(first) * acts.blocks;
  for (int b = 0; b < acts.blocks; b++) {
    const std::size_t at = base + static_cast<std::size_t>(b) * in_panel + (row - first);
    const float* source = x + b * BLOCK;
    if (formats & FLOATS) std::memcpy(acts.floats + at * BLOCK, source, sizeof(float) * BLOCK);
    if (formats & (WORDS | BYTES))
      quantise(source, acts.scales + at * 2, formats & WORDS ? acts.words + at * BLOCK : nullptr,
               formats & BYTES ? acts.bytes + at * BLOCK : nullptr);
  }
}

static void rotate(const float* x, const float* cosines, const float* sines, Turn turn, const Heads& heads, float* out) {
  const int half = turn.dims / 2;
  int i = 0;
  if (turn.interleaved) {
    for (; i < half; i++) {
      const float a = x[2 * i], b = x[2 * i + 1];
      out[2 * i] = fused(-b, sines[i], a * cosines[i]);
      out[2 * i + 1] = fused(a, sines[i], b * cosines[i]);
    }
  }
  for (; i + 8 <= half; i += 8) {
    const F8 a = load(x + i), b = load(x + half + i), c = load(cosines + i), s = load(sines + i);
    store(out + i, fnma(b, s, mul(a, c)));
    store(out + half + i, fma(a, s, mul(b, c)));
  }
  for (; i < half; i++) {
    const float a = x[i], b = x[half + i];
    out[i] = fused(-b, sines[i], a * cosines[i]);
    out[half + i] = fused(a, sines[i], b * cosines[i]);
  }
  std::memcpy(out + turn.dims, x + turn.dims, sizeof(float) * (heads.width - turn.dims));
  for (int j = heads.width; j < heads.padded; j++) out[j] = 0.0f;
}

// x [width] as levels, `stride` apart, with zeros up to the next multiple of eight; gives the bits of their scale.
static std::uint16_t levels_of(const float* x, int width, std::int8_t* levels, int stride) {
  alignas(32) float last[8] = {0};
  const int whole = width / 8 * 8;
  std::memcpy(last, x + whole, sizeof(float) * (width - whole));
  const auto at = [&](int d) { return load(d < whole ? x + d : last); };
  F8 most = set1(0);
  for (int d = 0; d < width; d += 8) most = max(most, abs(at(d)));
  const std::uint16_t scale = to_half(max_of(most) / 127.0f);
  const float step = from_half(scale), inverse = step > 0 ? 1.0f / step : 0.0f;
  alignas(32) float rounded[8];
  for (int d = 0; d < width; d += 8) {
    store(rounded, max(min(round(mul(at(d), set1(inverse))), set1(127)), set1(-127)));
    for (int i = 0; i < 8; i++) levels[(d + i) * stride] = static_cast<std::int8_t>(rounded[i]);
  }
  return scale;
}

static void store_key_levels(const float* k, std::int8_t* block, int lane, const Heads& heads) {
  const std::uint16_t scale = levels_of(k, heads.width, block + lane, 16);
  std::memcpy(block + 16 * heads.padded + 2 * lane, &scale, 2);
}

static void store_value_levels(const float* v, std::int8_t* cell, const Heads& heads) {
  const std::uint16_t scale = levels_of(v, heads.width, cell, 1);
  std::memcpy(cell + heads.padded, &scale, 2);
}

template <class E> static void store_key_as(const float* k, E* block, int lane, int width) {
  alignas(32) E row[8];
  for (int d = 0; d < width; d += 8) {
    const int count = width - d < 8 ? width - d : 8;
    store(row, load(k + d));
    for (int i = 0; i < count; i++) block[(d + i) * 16 + lane] = row[i];
  }
}
static void store_key(const float* k, void* block, int lane, Element element, const Heads& heads) {
  switch (element) {
    case Element::fp16: return store_key_as(k, static_cast<Half*>(block), lane, heads.width);
    case Element::bf16: return store_key_as(k, static_cast<Bfloat*>(block), lane, heads.width);
    case Element::fp32: return store_key_as(k, static_cast<float*>(block), lane, heads.width);
    case Element::int8: return store_key_levels(k, static_cast<std::int8_t*>(block), lane, heads);
  }
}

template <class E> static void store_value_as(const float* v, E* cell, int width) {
  int d = 0;
  for (; d + 8 <= width; d += 8) store(cell + d, load(v + d));
  if (d == width) return;
  alignas(32) float rest[8] = {0};
  alignas(32) E row[8];
  std::memcpy(rest, v + d, sizeof(float) * (width - d));
  store(row, load(rest));
  std::memcpy(cell + d, row, sizeof(E) * (width - d));
}
static void store_value(const float* v, void* cell, Element element, const Heads& heads) {
  switch (element) {
    case Element::fp16: return store_value_as(v, static_cast<Half*>(cell), heads.width);
    case Element::bf16: return store_value_as(v, static_cast<Bfloat*>(cell), heads.width);
    case Element::fp32: return store_value_as(v, static_cast<float*>(cell), heads.width);
    case Element::int8: return store_value_levels(v, static_cast<std::int8_t*>(cell), heads);
  }
}

static float total(const Best* best, int count, float most) {
  F8 sum = set1(0);
  alignas(32) float logits[8], sums[8];
  for (int i = 0; i < count; i += 8) {
    for (int j = 0; j < 8; j++) {
      const bool there = i + j < count;
      logits[j] = there ? best[i + j].logit : most;
      sums[j] = there ? best[i + j].sum : 0.0f;
    }
    sum = fma(exponential(sub(load(logits), set1(most))), load(sums), sum);
  }
  return sum_of(sum);
}

static float sweep(const std::uint8_t* data, std::size_t size) {
  F8 sums[8] = {set1(0), set1(0), set1(0), set1(0), set1(0), set1(0), set1(0), set1(0)};
  const float* p = reinterpret_cast<const float*>(data);
  for (std::size_t i = 0; i + 64 <= size / 4; i += 64, p += 64) {
    for (int j = 0; j < 4; j++) prefetch(p + 2048 + 16 * j);
    for (int j = 0; j < 8; j++) sums[j] = max(sums[j], load(p + 8 * j));
  }
  for (int j = 1; j < 8; j++) sums[0] = max(sums[0], sums[j]);
  return max_of(sums[0]);
}
