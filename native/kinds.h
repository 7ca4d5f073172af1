// The vocabulary of the core: kinds of packed matrices, activations, products, cache views.
#pragma once
#include <cstddef>
#include <cstdint>

namespace selfspec {

constexpr int GROUP = 16;    // outputs of a group
constexpr int BLOCK = 32;    // inputs of a block
constexpr int PANEL = 128;   // rows whose activations stay in the second-level cache
constexpr int SEGMENT = 128; // path positions of one partial sum of attention

// Layout of one block (16 outputs x 32 inputs):
//   fp32  input-major, 16 floats an input
//   fp16  input-major, 16 halves an input
//   bf16  input-major, 8 words an input: low half output j, high half output j + 8
//   int8  16 pairs of inputs p: output j at bytes 2j, 2j+1 (inputs 2p, 2p+1); then 16 scales (fp16)
//   int4  8 quads of inputs q: byte 4j+i has output j in its low and j + 8 in its high nibble, input 4q+i;
//         then 16 scales and 16 minima (fp16): weight = scale * q + minimum
enum class Kind : std::uint8_t { fp32, bf16, fp16, int8, int4 };

constexpr std::size_t block_bytes(Kind kind) {
  switch (kind) {
    case Kind::fp32: return 2048;
    case Kind::bf16: return 1024;
    case Kind::fp16: return 1024;
    case Kind::int8: return 544;
    case Kind::int4: return 320;
  }
  return 0;
}

constexpr int round_up(int n, int step) { return (n + step - 1) / step * step; }

// A packed matrix [n outputs, k inputs]: groups one after the other, each with its blocks in order.
// Outputs are padded to whole groups and inputs to whole blocks, with zeros.
struct Matrix {
  Kind kind = Kind::fp32;
  int n = 0, k = 0;
  const std::uint8_t* data = nullptr;
  int groups() const { return (n + GROUP - 1) / GROUP; }
  int blocks() const { return (k + BLOCK - 1) / BLOCK; }
  std::size_t group_bytes() const { return blocks() * block_bytes(kind); }
  std::size_t bytes() const { return groups() * group_bytes(); }
};

// What a product reads, in the formats that its kinds need. Each format is laid out
// [panel][block][row of the panel][32], so a tile addresses everything from one base.
struct Acts {
  float* floats = nullptr;        // fp32, bf16, fp16
  std::int16_t* words = nullptr;  // int8: quantised values
  std::int8_t* bytes = nullptr;   // int4: the same values
  float* scales = nullptr;        // [panel][block][row][2]: scale, scale * sum of the quantised values
  int rows = 0, blocks = 0;
};
constexpr int FLOATS = 1, WORDS = 2, BYTES = 4;
constexpr int format_of(Kind kind) {
  return kind == Kind::int8 ? WORDS : kind == Kind::int4 ? BYTES : FLOATS;
}

// What becomes of an output of a product: stored, added to what is there (a residual), turned into the activation
// of an MLP (gated: times the output of a second matrix), or only the best of each group is kept, with its sum of
// exponentials. Before that the bias is added, the sum scaled, and with a cap c > 0 c * tanh(x / c) is taken.
enum class Finish : std::uint8_t { store, add, activated, gated, best };
enum class Act : std::uint8_t { silu, gelu, gelu_tanh, relu, clipped };
struct Activation {
  Act act = Act::silu;
  float limit = 0, sharpness = 1;  // clipped: (up + 1) * gate * sigmoid(sharpness * gate), both within the limit
};
struct Ending {
  Finish finish = Finish::store;
  float scale = 1, cap = 0;
  Activation activation{};
};

// The best of one group of outputs of one row: its logit, its index, and the sum of exp(logit - best).
struct Best {
  float logit, sum;
  std::int32_t index;
};

struct Part {
  Matrix w;
  const float* bias = nullptr;  // padded to whole groups; null: none
  float* out = nullptr;         // [rows, stride]
  std::size_t stride = 0;
  Best* best = nullptr;         // [rows, groups]
};

// Where the weights go on: a thread's share of this product ends at `end`, and its next one begins at `next`.
struct Ahead {
  const std::uint8_t* end = nullptr;
  const std::uint8_t* next = nullptr;
};

// How the numbers of keys and values are kept; int8: a key or value of a head has one scale (fp16), which lies behind
// its numbers, and for the keys of a block behind those of all of them.
enum class Element : std::uint8_t { fp16, bf16, fp32, int8 };
constexpr std::size_t element_bytes(Element element) {
  return element == Element::fp32 ? 4 : element == Element::int8 ? 1 : 2;
}
// Elements of a key or value of `padded` numbers, its scale included.
constexpr int cell_elements(Element element, int padded) { return padded + (element == Element::int8 ? 2 : 0); }

// y = x / size(x) * weight + bias, where the size is the root of the mean square; centred: of x - mean(x).
// Without weights y = x.
struct NormView {
  const float *weight = nullptr, *bias = nullptr;  // padded to whole blocks
  int d = 0;
  float eps = 0;
  bool centred = false;
};

// Which numbers of a head turn: the first `dims`, i with i + dims / 2, or with its neighbour.
struct Turn {
  int dims = 0;
  bool interleaved = false;
};

// One tile of attention: rows of one slot, one KV head, segments [first, last) of their paths.
struct Heads {
  int group = 1;  // query heads of a KV head
  int width = 0, padded = 0;  // of a head; padded to 8
  float scale = 1, cap = 0;   // of scores, as of products
};
struct Path {
  int length = 0;  // cells that a row sees, its own included
  int direct = 0;  // the first of them, where path index and cell are one
  const std::int64_t* tail = nullptr;  // the cells of path indices [direct, length)
  int first = 0;   // a window: nothing before this path index is seen
};
struct Attend {
  const void* keys = nullptr;    // [places / 16][padded][16] of this layer, slot and KV head; int8: and [16] scales
  const void* values = nullptr;  // [places][padded]; int8: and a scale
  const void* next = nullptr;    // keys that this thread will read afterwards, if it is known
  int places = 0;                // cell c lies in place c % places
  Element element = Element::fp16;
  const float* queries = nullptr;  // of the first row: [group][padded]; the next row is query_stride away
  std::size_t query_stride = 0;
  const Path* paths = nullptr;
  int rows = 0, first = 0, last = 0;
  bool folded = false;  // all segments into one partial, else one each, from the first that the row sees
  float* partials = nullptr;  // of the first row: [segments or 1][padded + 8] of each of its heads
  std::size_t row_stride = 0, head_stride = 0;
  float* scratch = nullptr;
};

// One set of kernels; every set gives the same bits.
struct Kernels {
  const char* name;
  // one row; y gets zeros from d to the next whole block
  void (*norm)(const float* x, const NormView& view, float* y);
  // row `row` of the activations, in the formats wanted; x has whole blocks
  void (*prepare)(const float* x, int formats, const Acts& acts, int row);
  // out = x turned by the angles, whose tables have dims / 2 entries; out is padded
  void (*rotate)(const float* x, const float* cosines, const float* sines, Turn turn, const Heads& heads, float* out);
  void (*store_key)(const float* k, void* block, int lane, Element element, const Heads& heads);
  void (*store_value)(const float* v, void* cell, Element element, const Heads& heads);
  // groups [g0, g1) for all rows of the activations; `second` goes with `gated`
  void (*product)(const Part& part, const Part* second, const Ending& ending, const Acts& acts, int g0, int g1, Ahead ahead);
  void (*attend)(const Attend& task, const Heads& heads);
  // fold `count` partials of one head and divide: out [width]; work has padded + 8 floats. A sink is a score that
  // takes part in the soft-max and has no value; null: none
  void (*fold)(const float* partials, int count, const Heads& heads, const float* sink, float* work, float* out);
  // sum of sums[i] * exp(logits[i] - most)
  float (*total)(const Best* best, int count, float most);
  // reads whole cache lines and returns something of them
  float (*sweep)(const std::uint8_t* data, std::size_t size);
};

// Rows of one tile of attention: as many as keep their scores in the first-level cache.
constexpr int rows_per_tile(const Heads& heads) {
  return heads.group >= 24 ? 1 : 24 / heads.group < 8 ? 24 / heads.group : 8;
}
// Floats of scratch that one attend needs.
constexpr std::size_t attend_scratch(const Heads& heads) {
  const std::size_t vectors = static_cast<std::size_t>(rows_per_tile(heads)) * heads.group;
  const std::size_t buffer = static_cast<std::size_t>(heads.group > 16 ? heads.group : 16) * heads.padded;
  return vectors * (SEGMENT + 2 * (heads.padded + 8)) + buffer + heads.group * SEGMENT;
}

}  // namespace selfspec
