// One job of the team: a span of sub-layers, or the head, over a set of rows.
#pragma once
#include <vector>

#include "model.h"

namespace selfspec {

// Matrices that read the same activations, worked through as one run of groups.
struct Product {
  Part parts[3];
  int count = 0;
  Finish finish = Finish::store;
  int inputs() const { return parts[0].w.k; }
  int groups() const;
  int formats() const;
  const std::uint8_t* at(int group) const;
};

class Pass {
 public:
  Pass(Model& model, Team& team, int rows, float* x) : m_(model), k_(model.kernels), s_(model.scratch_), team_(team), counters_(team.size()), count_(rows), x_(x) {}
  void layers(const std::vector<Step>& steps, const Rows& rows, Cache& cache);
  void head(const Product& product);

 private:
  struct Member {
    int id, phase = 0, product = 0;
    double clock = 0;
  };
  struct Item {
    int first, rows, head, low, high;  // rows [first, first + rows), segments [low, high)
  };
  void plan(const std::vector<Step>& steps);
  void tile(const Rows& rows);
  void angles(int id);
  void attention(Member& me, const Layer& layer, int index);
  void mlp(Member& me, const Layer& layer);
  void place(int id, int layer);
  void attend(Member& me, int layer);
  void attend(Member& me, int layer, const Item& item, const Item* next);
  const void* keys_of(const Item& item, int layer) const;
  template <class F> Acts prepared(Member& me, F row);
  Acts normed(Member& me, const std::vector<float>& weight);
  Acts folded(Member& me);
  void multiply(Member& me, const Acts& acts);
  void groups(const Product& p, const Acts& acts, int g0, int g1, Ahead ahead);
  int share(int total, int id) const { return static_cast<int>(static_cast<std::int64_t>(total) * id / team_.size()); }
  void lap(Member& me, Clock clock);
  void begin(Member& me);
  void end(Member& me);

  Model& m_;
  const Kernels& k_;
  Scratch& s_;
  Team& team_;
  Counters counters_;
  const int count_;
  float* const x_;
  std::vector<Product> products_;
  std::vector<Path> paths_;
  std::vector<Item> items_;
  std::size_t partials_ = 1;  // of a head of a row
  const Rows* rows_ = nullptr;
  Cache* cache_ = nullptr;
};

}  // namespace selfspec
