// A decoder of the Llama type: its weights, which belong to the caller, and the memory of its passes.
#pragma once
#include <array>
#include <utility>
#include <vector>

#include "cache.h"
#include "kinds.h"
#include "memory.h"
#include "threads.h"

namespace selfspec {

struct Sizes {
  int layers, hidden, intermediate, heads, kv_heads, width, vocabulary;
  float eps;
  int query() const { return heads * width; }
  int key() const { return kv_heads * width; }
};

struct Linear {
  Matrix w;
  std::vector<float> bias;  // padded to whole groups; empty: none
};

struct Layer {
  Linear q, k, v, o, gate, up, down;
  std::vector<float> attention_norm, mlp_norm;  // padded to whole blocks
};

// Memory of one pass at a time, kept for the next one.
struct Scratch {
  Acts shared;              // of all rows
  std::vector<Acts> own;    // of a single row, one for each member
  float *qkv = nullptr, *queries = nullptr, *partials = nullptr, *hidden = nullptr;
  float *cosines = nullptr, *sines = nullptr;
  Best* best = nullptr;
  std::vector<float*> row, attend;  // of each member
  Memory memory, partial_memory, best_memory;
  std::size_t rows = 0, partial_floats = 0, bests = 0;
};

struct Rows {
  int count = 0, depth = 0;
  const std::int64_t *slots = nullptr, *positions = nullptr, *lineage = nullptr;  // lineage [count, depth] or null
  std::int64_t cell(int r) const { return lineage ? lineage[(r + 1) * std::int64_t{depth} - 1] : positions[r]; }
  Path path(int r) const;
};

enum class Sub : std::uint8_t { attention, mlp };
struct Step {
  int layer;
  Sub part;
  float* tap = nullptr;  // [rows, hidden]: where the residual stream after it is copied
};

// Where the time of member 0 goes, waiting for others included.
enum class Clock : std::uint8_t { start, norm, qkv, place, attend, out, gate_up, down, head, count };
using Clocks = std::array<double, static_cast<std::size_t>(Clock::count)>;

class Model {
 public:
  Model(const Sizes& sizes, std::vector<float> frequencies, const Kernels& kernels, int threads);
  // x [rows, hidden] is replaced by the residual stream after the steps.
  void run(float* x, const std::vector<Step>& steps, const Rows& rows, Cache& cache);
  // Final norm and head over x [rows, hidden]: logits [rows, head.n].
  void logits(const float* x, int rows, const Matrix& head, float* out);
  // Read bytes as products do, each member its share, without arithmetic: the floor of any pass.
  void sweep(const std::vector<std::pair<const std::uint8_t*, std::size_t>>& spans);
  // The largest logit of each row, its index (the first of equals), and log-sum-exp of all.
  void best(const float* x, int rows, const Matrix& head, std::int64_t* index, float* logit, float* lse);

  const Sizes sizes;
  const Heads heads;
  const std::vector<float> frequencies;
  const Kernels& kernels;
  std::vector<Layer> layers;
  std::vector<float> final_norm;
  Linear head;
  int threads() const { return teams_.size(); }
  bool timed = false;  // whether passes add to `seconds`
  Clocks seconds{};

 private:
  friend class Pass;
  void reserve(int rows, std::size_t partial_floats, std::size_t bests);
  Teams teams_;
  Scratch scratch_;
};

// The k largest of n logits in falling order, the first of equals first.
void largest(const float* logits, int n, int k, std::int64_t* index, float* logit);

}  // namespace selfspec
