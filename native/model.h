// A decoder: its layers, ends and rotary embeddings, and the passes over it.
#pragma once
#include <array>
#include <utility>
#include <vector>

#include "cache.h"
#include "layer.h"
#include "scratch.h"
#include "threads.h"

namespace selfspec {

struct Rows {
  int count = 0, depth = 0;
  const std::int64_t *slots = nullptr, *positions = nullptr, *lineage = nullptr;  // lineage [count, depth] or null
  std::int64_t cell(int r) const { return lineage ? lineage[(r + 1) * std::int64_t{depth} - 1] : positions[r]; }
  Path path(int r, int window) const;
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

// What becomes of logits.
struct LogitFacts { float scale = 1, cap = 0; };

class Model {
 public:
  Model(const Sizes& sizes, std::vector<Rope> ropes, const Kernels& kernels, int threads);
  // x [rows, hidden] is replaced by the residual stream after the steps; `experts` of each row, 0: as many as a layer has;
  // beside [rows, hidden]: second vectors, for layers that read them, or null.
  void run(float* x, const std::vector<Step>& steps, const Rows& rows, Cache& cache, int experts, const float* beside);
  // out [rows, hidden] = or += the product of `transform` and x [rows, its inputs].
  void transformed(const float* x, int rows, float* out, bool adds);
  // Final norm and head over x [rows, hidden]: logits [rows, head.n].
  void logits(const float* x, int rows, const Matrix& head, float* out);
  // Read bytes as products do, each member its share, without arithmetic: the floor of any pass.
  void sweep(const std::vector<std::pair<const std::uint8_t*, std::size_t>>& spans);
  // The largest logit of each row, its index (the first of equals), and log-sum-exp of all.
  void best(const float* x, int rows, const Matrix& head, std::int64_t* index, float* logit, float* lse);

  const Sizes sizes;
  const std::vector<Rope> ropes;
  const Kernels& kernels;
  std::vector<Layer> layers;
  Norm final_norm;
  Linear head, transform;
  LogitFacts logit_facts;
  bool final_centred = false;
  int threads() const { return teams_.size(); }
  bool timed = false;  // whether passes add to `seconds`
  Clocks seconds{};
  std::int64_t expert_reads = 0;  // experts whose weights passes have read, each once a pass and layer

 private:
  friend class Pass;
  void reserve(const Room& room);
  Widest widest() const;
  Teams teams_;
  Scratch scratch_;
};

// The k largest of n logits in falling order, the first of equals first.
void largest(const float* logits, int n, int k, std::int64_t* index, float* logit);

}  // namespace selfspec
