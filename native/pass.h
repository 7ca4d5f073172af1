// One job of the team: a span of sub-layers, or the head, over a set of rows.
#pragma once
#include <vector>

#include "model.h"
#include "tiling.h"

namespace selfspec {

// Matrices that read the same activations, worked through as one run of groups.
struct Product {
  Part parts[3];
  int count = 0;
  Ending ending{};
  int inputs() const { return parts[0].w.k; }
  int groups() const;
  int formats() const;
  const std::uint8_t* at(int group) const;
};

Part part_of(const Linear& linear, float* out, std::size_t stride);

class Pass {
 public:
  Pass(Model& model, Team& team, int rows, float* x) : m_(model), k_(model.kernels), s_(model.scratch_), team_(team), counters_(team.size()), count_(rows), x_(x) {}
  void layers(const std::vector<Step>& steps, const Rows& rows, Cache& cache, int experts, const float* beside);
  void head(const Product& product);
  void product(const Product& product);

 private:
  struct Member {
    int id, phase = 0, product = 0;
    double clock = 0;
  };
  // An expert that some rows have: pairs [first, first + rows) of those sorted by expert.
  struct Chosen { int expert, first, rows; };

  // pass.cpp
  void reserve(const std::vector<Step>& steps);
  void plan(const std::vector<Step>& steps);
  void plan_attention(const Layer& layer);
  void plan_mlp(const Layer& layer);
  Ending ending_of(const Layer& layer, const Norm& after) const;
  template <class F> Acts prepared(Member& me, int inputs, int formats, F row);
  Acts whole(Member& me, const float* rows, int width, int stride);
  Acts activated(Member& me, int width) { return whole(me, s_.inner, width, round_up(width, BLOCK)); }  // by the first product of an MLP
  Acts normed(Member& me, const Norm& norm, const Layer& layer, const float* x, int formats);
  NormView view(const Norm& norm, int d, bool centred) const;
  void multiply(Member& me, const Acts& acts);
  void groups(const Product& p, const Acts& acts, int g0, int g1, Ahead ahead);
  template <class F> void divide(Member& me, int total, int piece, F f);
  void settle(Member& me, const Layer& layer, const Norm& after);
  void mlp(Member& me, const Layer& layer, const float* x);
  int share(int total, int id) const { return static_cast<int>(static_cast<std::int64_t>(total) * id / team_.size()); }
  void lap(Member& me, Clock clock);
  void begin(Member& me);
  void end(Member& me);

  // pass_attention.cpp
  void angles(int id);
  float* table(float* of_all, int rope) const;  // of cosines or sines
  void attention(Member& me, const Layer& layer, int index);
  Acts joined(Member& me, const Layer& layer, int formats);
  void norm_widths(int id, const Layer& layer);
  void place(int id, const Layer& layer, int index);
  const Tiling& tiling(const Layer& layer) const;
  void attend(Member& me, const Layer& layer, int index);
  void attend(Member& me, const Layer& layer, int index, const Piece& piece, const Piece* next);
  const void* keys_of(const Piece& piece, int layer) const;
  Acts folded(Member& me, const Layer& layer);

  // pass_experts.cpp
  int per_token(const Layer& layer) const { return experts_ ? experts_ : layer.facts.per_token; }
  void mixture(Member& me, const Layer& layer, const float* x);
  void route(Member& me, const Layer& layer);
  void sort(const Layer& layer);
  void gather(int id, const Acts& from, int formats);
  Acts acts_of(const Chosen& chosen, int blocks) const;
  template <class F> void own_pairs(int id, F f);
  template <class F> void multiply_experts(Member& me, int groups, F f);
  void combine(int id, const Layer& layer);

  Model& m_;
  const Kernels& k_;
  Scratch& s_;
  Team& team_;
  Counters counters_;
  const int count_;
  float* const x_;
  std::vector<Product> products_;
  std::vector<Tiling> tilings_;
  const Rows* rows_ = nullptr;
  Cache* cache_ = nullptr;
  const float* beside_ = nullptr;
  int experts_ = 0;
  // of a mixture: for row r and its i-th expert, in rising order, at r * per_token + i
  std::vector<int> expert_, pair_;  // which one, and the place of the pair in the order of experts
  std::vector<float> weight_;
  std::vector<int> row_of_pair_, next_;
  std::vector<Chosen> chosen_;
};

// -- what the parts of a pass share ------------------------------------------------------------------------

// Members take pieces of [0, total): f(begin, end, last) with `last` the end of the share that they lie in. The own
// share comes first, then what the others have left.
template <class F> void Pass::divide(Member& me, int total, int piece, F f) {
  begin(me);
  const int size = team_.size();
  for (int i = 0; i < size; i++) {
    const int owner = (me.id + i) % size, first = share(total, owner), last = share(total, owner + 1);
    std::atomic<int>& taken = counters_.at(me.phase, owner);
    for (int g; (g = first + taken.fetch_add(piece, std::memory_order_relaxed)) < last;)
      f(g, g + piece < last ? g + piece : last, last);
  }
  end(me);
}

// The activations of the next product: row(r, buffer) gives the floats of row r, in whole blocks. A single row is
// made by every member for itself, which is cheaper than to meet.
template <class F> Acts Pass::prepared(Member& me, int inputs, int formats, F row) {
  const bool alone = count_ == 1;
  Acts acts = alone ? s_.own[me.id] : s_.shared;
  acts.rows = count_, acts.blocks = (inputs + BLOCK - 1) / BLOCK;
  const int first = alone ? 0 : share(count_, me.id), last = alone ? 1 : share(count_, me.id + 1);
  for (int r = first; r < last; r++) k_.prepare(row(r, s_.row[me.id]), formats, acts, r);
  if (!alone) team_.barrier();
  return acts;
}

}  // namespace selfspec
