// Matrix products: register tiles of 16 outputs by up to 6 rows. Included per instruction set.
// Every output of every row is one chain of sums over the blocks in order, whatever runs beside it.

constexpr int CHUNK = 6;        // blocks that all row tiles use before the next chunk
constexpr std::size_t DISTANCE = 8192;  // bytes between what is fetched and what is used

// Lines to fetch during one tile.
struct Fetch {
  const std::uint8_t* at;
  int lines, step;
  void block() {
    for (int i = 0; i < lines; i++) prefetch(at + 64 * i);
    at += step;
  }
};

// What a tile reads: one block of the activations and where its rows lie.
struct View {
  const float* floats;
  const std::int16_t* words;
  const std::int8_t* bytes;
  const float* scales;
  int rows;  // of the panel
};

template <int R> static inline void open(Wide (&sums)[R][PARTS], const float* f) {
  UNROLL for (int t = 0; t < R; t++) UNROLL for (int j = 0; j < PARTS; j++) sums[t][j] = wide(f + t * GROUP + j * LANES);
}
template <int R> static inline void close(const Wide (&sums)[R][PARTS], float* f) {
  UNROLL for (int t = 0; t < R; t++) UNROLL for (int j = 0; j < PARTS; j++) store(f + t * GROUP + j * LANES, sums[t][j]);
}

template <Kind kind, int R>
static void tile(const std::uint8_t* w, View x, int first, int blocks, float* f, Fetch fetch) {
  Wide sums[R][PARTS];
  open(sums, f);
  const float* scales = x.scales + first * 2;
  for (int b = 0; b < blocks; b++, w += block_bytes(kind)) {
    fetch.block();
    const std::size_t at = (static_cast<std::size_t>(b) * x.rows + first) * BLOCK;
    if constexpr (kind == Kind::int8 || kind == Kind::int4) {
      WideInt c[R][PARTS];
      if constexpr (kind == Kind::int8) dot_int8<R>(w, x.words + at, c);
      else dot_int4<R>(w, x.bytes + at, c);
      const std::uint16_t* steps = reinterpret_cast<const std::uint16_t*>(w + (kind == Kind::int8 ? 512 : 256));
      const float* s = scales + static_cast<std::size_t>(b) * x.rows * 2;
      Wide d[PARTS];
      UNROLL for (int j = 0; j < PARTS; j++) d[j] = wide(steps + j * LANES);
      UNROLL for (int t = 0; t < R; t++) {
        const Wide scale = all(s[t * 2]);
        UNROLL for (int j = 0; j < PARTS; j++) sums[t][j] = fma(to_float(c[t][j]), mul(d[j], scale), sums[t][j]);
      }
      if constexpr (kind == Kind::int4) {
        UNROLL for (int j = 0; j < PARTS; j++) d[j] = wide(steps + GROUP + j * LANES);
        UNROLL for (int t = 0; t < R; t++) {
          const Wide total = all(s[t * 2 + 1]);
          UNROLL for (int j = 0; j < PARTS; j++) sums[t][j] = fma(d[j], total, sums[t][j]);
        }
      }
    } else {
      const float* a = x.floats + at;
      _Pragma("GCC unroll 4") for (int k = 0; k < BLOCK; k++) {
        Wide v[PARTS];
        weights<kind>(w, k, v);
        UNROLL for (int t = 0; t < R; t++) {
          const Wide input = all(a[t * BLOCK + k]);
          UNROLL for (int j = 0; j < PARTS; j++) sums[t][j] = fma(v[j], input, sums[t][j]);
        }
      }
    }
  }
  close(sums, f);
}

template <Kind kind, int R = TILE_ROWS>
static void tile_of(int rows, const std::uint8_t* w, View x, int first, int blocks, float* f, Fetch fetch) {
  if constexpr (R > 1)
    if (rows < R) return tile_of<kind, R - 1>(rows, w, x, first, blocks, f, fetch);
  tile<kind, R>(w, x, first, blocks, f, fetch);
}

static View view(const Acts& acts, int first_row, int rows) {
  const std::size_t base = static_cast<std::size_t>(first_row) * acts.blocks;
  return {acts.floats + base * BLOCK, acts.words + base * BLOCK, acts.bytes + base * BLOCK, acts.scales + base * 2, rows};
}

// One group for the rows of one panel: f [rows][16].
template <Kind kind> static void group(const std::uint8_t* w, View x, int blocks, float* f, Ahead ahead) {
  const int tiles = (x.rows + TILE_ROWS - 1) / TILE_ROWS, base = x.rows / tiles, rest = x.rows % tiles;
  const int sharers = tiles <= 4 ? tiles : 1;  // with many tiles fetching is cheap beside the arithmetic
  const int step = static_cast<int>((block_bytes(kind) + sharers - 1) / sharers), lines = (step + 63) / 64;
  std::memset(f, 0, sizeof(float) * GROUP * x.rows);
  for (int b = 0; b < blocks; b += CHUNK) {
    const int count = blocks - b < CHUNK ? blocks - b : CHUNK;
    const std::size_t size = count * block_bytes(kind);
    const std::uint8_t* target = w + DISTANCE;
    if (target >= ahead.end) target = ahead.next ? ahead.next + (target - ahead.end) : nullptr;
    for (int i = 0, t = 0; i < tiles; i++) {
      const int rows = base + (i < rest);
      Fetch fetch{target + static_cast<std::size_t>(i) * count * step, target && i < sharers ? lines : 0, step};
      tile_of<kind>(rows, w, x, t, count, f + t * GROUP, fetch);
      t += rows;
    }
    w += size;
    const std::size_t skip = static_cast<std::size_t>(count) * x.rows;
    if (format_of(kind) == FLOATS) x.floats += skip * BLOCK;
    if (format_of(kind) == WORDS) x.words += skip * BLOCK;
    if (format_of(kind) == BYTES) x.bytes += skip * BLOCK;
    if (format_of(kind) != FLOATS) x.scales += skip * 2;
  }
}

static void any_group(const Matrix& w, int g, View x, float* f, Ahead ahead) {
  const std::uint8_t* data = w.data + g * w.group_bytes();
  switch (w.kind) {
    case Kind::fp32: return group<Kind::fp32>(data, x, w.blocks(), f, ahead);
    case Kind::bf16: return group<Kind::bf16>(data, x, w.blocks(), f, ahead);
    case Kind::fp16: return group<Kind::fp16>(data, x, w.blocks(), f, ahead);
    case Kind::int8: return group<Kind::int8>(data, x, w.blocks(), f, ahead);
    case Kind::int4: return group<Kind::int4>(data, x, w.blocks(), f, ahead);
  }
}

// What remains of one group of one row after the bias: `count` outputs are real.
static inline void put(float* out, F8 low, F8 high, int count, bool sum) {
  if (count == GROUP) {
    store(out, sum ? add(load(out), low) : low);
    store(out + 8, sum ? add(load(out + 8), high) : high);
    return;
  }
  alignas(32) float f[GROUP];
  store(f, low), store(f + 8, high);
  for (int j = 0; j < count; j++) out[j] = sum ? out[j] + f[j] : f[j];
}

static Best best_of(F8 low, F8 high, int first, int count) {
  alignas(32) float f[GROUP];
  store(f, low), store(f + 8, high);
  int at = 0;
  for (int j = 1; j < count; j++)
    if (f[j] > f[at]) at = j;
  for (int j = count; j < GROUP; j++) f[j] = -1e30f;
  const F8 most = set1(f[at]);
  const F8 sums = add(exponential(sub(load(f), most)), exponential(sub(load(f + 8), most)));
  return {f[at], sum_of(sums), first + at};
}

static inline void add_bias(const Part& part, int g, F8& low, F8& high) {
  if (!part.bias) return;
  low = add(low, load(part.bias + g * GROUP)), high = add(high, load(part.bias + g * GROUP + 8));
}

// f, and with a gate f2: the sums [rows][16] of one group, not yet with bias.
static void finish(const Part& part, const Part* second, const Ending& how, int g, int first_row, int rows, const float* f,
                   const float* f2) {
  const int left = part.w.n - g * GROUP, count = left < GROUP ? left : GROUP;
  for (int t = 0; t < rows; t++) {
    F8 low = load(f + t * GROUP), high = load(f + t * GROUP + 8);
    add_bias(part, g, low, high);
    if (how.scale != 1.0f) low = mul(low, set1(how.scale)), high = mul(high, set1(how.scale));
    if (how.cap > 0.0f) low = capped(low, how.cap), high = capped(high, how.cap);
    const std::size_t row = first_row + t;
    if (how.finish == Finish::best) {
      part.best[row * part.w.groups() + g] = best_of(low, high, g * GROUP, count);
      continue;
    }
    if (how.finish == Finish::gated) {
      F8 up0 = load(f2 + t * GROUP), up1 = load(f2 + t * GROUP + 8);
      add_bias(*second, g, up0, up1);
      low = gate(low, up0, how.activation), high = gate(high, up1, how.activation);
    } else if (how.finish == Finish::activated) {
      low = activated(low, how.activation), high = activated(high, how.activation);
    }
    put(part.out + row * part.stride + g * GROUP, low, high, count, how.finish == Finish::add);
  }
}

static void product(const Part& part, const Part* second, const Ending& how, const Acts& acts, int g0, int g1, Ahead ahead) {
  alignas(64) float f[PANEL * GROUP], f2[PANEL * GROUP];
  Ahead other = ahead;  // of the second matrix, whose share ends at the same group
  if (second) other.end = second->w.data + (ahead.end - part.w.data) / part.w.group_bytes() * second->w.group_bytes();
  if (second && ahead.next) other.next += DISTANCE;
  for (int first = 0; first < acts.rows; first += PANEL) {
    const int rows = acts.rows - first < PANEL ? acts.rows - first : PANEL;
    const View x = view(acts, first, rows);
    for (int g = g0; g < g1; g++) {
      any_group(part.w, g, x, f, ahead);
      if (second) any_group(second->w, g, x, f2, other);
      finish(part, second, how, g, first, rows, f, f2);
    }
  }
}
