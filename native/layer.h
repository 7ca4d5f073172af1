// What one layer computes, as data, and its weights, which belong to the caller.
#pragma once
#include <vector>

#include "kinds.h"

namespace selfspec {

struct Sizes {
  int layers, hidden, intermediate, heads, kv_heads, width, vocabulary;
  float eps;
  int reads(const bool beside) const { return beside ? 2 * hidden : hidden; }  // inputs of queries, keys and values
  int query() const { return heads * width; }
  int key() const { return kv_heads * width; }
};

// A rotary embedding: cosines and sines of position * frequency, times the factor.
struct Rope {
  std::vector<float> frequencies;  // one for each pair
  bool interleaved = false;
  float factor = 1;
  Turn turn() const { return {2 * static_cast<int>(frequencies.size()), interleaved}; }
};

// What a router's logits say: a soft-max over all experts, that divided by the sum of the chosen, or a soft-max over
// the chosen.
enum class Weighting : std::uint8_t { all, renormed, chosen };

struct Facts {
  int rope = -1;    // its index in the model; -1: none
  int window = 0;   // positions that a row sees, its own included; 0: all
  float scale = 1, cap = 0;  // of scores
  bool centred = false;      // norms subtract the mean
  bool norm_heads = true;    // queries and keys are normed per head, if they have weights for it; else over the width
  bool parallel = false;     // the MLP reads what enters the layer
  bool beside = false;       // attention reads a second vector of each row before the stream's, each through its norm
  float residual = 1;        // what a part adds is multiplied by it
  Activation activation{};
  int experts = 0, per_token = 0, expert_width = 0, shared_width = 0;
  Weighting weighting = Weighting::all;
};

struct Linear {
  Matrix w;
  std::vector<float> bias;  // padded to whole groups; empty: none
  bool there() const { return w.data != nullptr; }
};

struct Norm {
  std::vector<float> weight, bias;  // padded to whole blocks; empty: none
  bool there() const { return !weight.empty(); }
};

struct Expert { Linear gate, up, down; };

struct Layer {
  Facts facts;
  Heads heads;  // with this layer's scale and cap
  Linear q, k, v, o, gate, up, down, router, shared_gate, shared_up, shared_down, shared_router;
  std::vector<Expert> experts;
  int expert_formats = 0, inner_formats = 0;  // of activations, that some expert reads first and last
  Norm attention_norm, mlp_norm, attention_after, mlp_after, q_norm, k_norm, beside_norm;
  std::vector<float> sinks;  // of each head; empty: none
};

}  // namespace selfspec
