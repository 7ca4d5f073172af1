// Memory of one pass at a time, kept for the next one.
#pragma once
#include <vector>

#include "layer.h"
#include "memory.h"

namespace selfspec {

// What a pass needs room for.
struct Room {
  std::size_t rows = 0, partials = 0, bests = 0;  // partials in floats
  std::size_t pairs = 0;                          // of a row and one of its experts
};

struct Widest {
  int inputs = 0;   // of a product, in whole blocks
  int inner = 0;    // of an MLP
  int experts = 0, expert_width = 0;
  int angles = 0;   // of all rotary embeddings together
  bool operator==(const Widest&) const = default;
};

struct Scratch {
  Acts shared;              // of all rows
  std::vector<Acts> own;    // of a single row, one for each member
  float *qkv = nullptr, *queries = nullptr, *partials = nullptr, *inner = nullptr, *out = nullptr, *entered = nullptr;
  float *cosines = nullptr, *sines = nullptr;
  float *routed = nullptr, *shared_gate = nullptr;  // logits of experts [rows, experts] and of the shared one [rows]
  Acts paired;                                      // of all pairs, sorted by expert
  float *pair_inner = nullptr, *pair_out = nullptr;
  Best* best = nullptr;
  std::vector<float*> row, attend;  // of each member

  // Makes room; what was there before is lost.
  void reserve(const Room& room, const Sizes& sizes, const Heads& heads, const Widest& widest, int members);

 private:
  Memory memory_, partial_memory_, best_memory_, pair_memory_;
  Room held_;
  Widest widest_;  // for which it is held
};

}  // namespace selfspec
