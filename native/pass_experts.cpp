// A mixture of experts: rows are sorted by expert, and each expert that some row has is read once in a pass.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "pass.h"

namespace selfspec {
namespace {

// The `wanted` largest logits, the first of equals, in rising order of experts, and what they weigh. A row that is
// no number has experts, too.
void choose(const float* logits, int count, int wanted, Weighting weighting, int* chosen, float* weights) {
  const auto value = [&](int e) { return std::isnan(logits[e]) ? -INFINITY : logits[e]; };
  const auto before = [&](int a, int b) { return value(a) > value(b) || (value(a) == value(b) && a < b); };
  for (int i = 0; i < wanted; i++) {
    int best = -1;
    for (int e = 0; e < count; e++)  // the next one after the last chosen
      if ((i == 0 || before(chosen[i - 1], e)) && (best < 0 || before(e, best))) best = e;
    chosen[i] = best;
  }
  const float top = logits[chosen[0]];
  float sum = 0;
  if (weighting == Weighting::chosen)
    for (int i = 0; i < wanted; i++) sum += std::exp(logits[chosen[i]] - top);
  else
    for (int e = 0; e < count; e++) sum += std::exp(logits[e] - top);
  std::sort(chosen, chosen + wanted);
  float kept = 0;
  for (int i = 0; i < wanted; i++) kept += weights[i] = std::exp(logits[chosen[i]] - top) / sum;
  if (weighting == Weighting::renormed)
    for (int i = 0; i < wanted; i++) weights[i] /= kept;
}

// Row `from_row` of activations, copied to row `to_row` of others, in the formats wanted.
void copy_row(const Acts& from, int from_row, const Acts& to, int to_row, int formats) {
  const auto place = [](const Acts& acts, int row, int block) {
    const int first = row / PANEL * PANEL, in_panel = std::min(acts.rows - first, PANEL);
    return static_cast<std::size_t>(first) * acts.blocks + static_cast<std::size_t>(block) * in_panel + (row - first);
  };
  for (int b = 0; b < from.blocks; b++) {
    const std::size_t in = place(from, from_row, b), out = place(to, to_row, b);
    if (formats & FLOATS) std::memcpy(to.floats + out * BLOCK, from.floats + in * BLOCK, sizeof(float) * BLOCK);
    if (formats & WORDS) std::memcpy(to.words + out * BLOCK, from.words + in * BLOCK, sizeof(std::int16_t) * BLOCK);
    if (formats & BYTES) std::memcpy(to.bytes + out * BLOCK, from.bytes + in * BLOCK, BLOCK);
    if (formats & (WORDS | BYTES)) std::memcpy(to.scales + out * 2, from.scales + in * 2, sizeof(float) * 2);
  }
}

}  // namespace

// Every row chooses its experts; then one member sorts all pairs.
void Pass::route(Member& me, const Layer& layer) {
  const Facts& f = layer.facts;
  const int each = per_token(layer);
  for (int r = share(count_, me.id); r < share(count_, me.id + 1); r++)
    choose(s_.routed + static_cast<std::size_t>(r) * f.experts, f.experts, each, f.weighting, &expert_[r * each], &weight_[r * each]);
  team_.barrier();
  if (me.id == 0) sort(layer);
  team_.barrier();
}

void Pass::sort(const Layer& layer) {
  const int each = per_token(layer), pairs = count_ * each;
  chosen_.clear();
  std::fill(next_.begin(), next_.end(), 0);
  for (int i = 0; i < pairs; i++) next_[expert_[i]]++;
  for (int e = 0, first = 0; e < layer.facts.experts; e++) {
    if (next_[e]) chosen_.push_back({e, first, next_[e]});
    first += std::exchange(next_[e], first);
  }
  for (int i = 0; i < pairs; i++) row_of_pair_[pair_[i] = next_[expert_[i]]++] = i / each;
  m_.expert_reads += static_cast<std::int64_t>(chosen_.size());
}

// The activations of the pairs of one expert.
Acts Pass::acts_of(const Chosen& c, int blocks) const {
  const std::size_t before = static_cast<std::size_t>(c.first) * blocks;
  Acts acts = s_.paired;
  acts.floats += before * BLOCK, acts.words += before * BLOCK, acts.bytes += before * BLOCK, acts.scales += before * 2;
  acts.rows = c.rows, acts.blocks = blocks;
  return acts;
}

// f(chosen, i) for the member's share of all pairs: the i-th of its expert.
template <class F> void Pass::own_pairs(int id, F f) {
  const int pairs = chosen_.back().first + chosen_.back().rows, begin = share(pairs, id), end = share(pairs, id + 1);
  for (const Chosen& c : chosen_)
    for (int i = std::max(begin, c.first); i < std::min(end, c.first + c.rows); i++) f(c, i - c.first);
}

void Pass::gather(int id, const Acts& from, int formats) {
  own_pairs(id, [&](const Chosen& c, int i) {
    copy_row(from, row_of_pair_[c.first + i], acts_of(c, from.blocks), i, formats);
  });
}

// f(chosen, g0, g1, next) for pieces of the groups of all chosen experts; `next` is the expert that follows, or null.
template <class F> void Pass::multiply_experts(Member& me, int groups, F f) {
  const int total = static_cast<int>(chosen_.size()) * groups;
  divide(me, total, std::max(1, total / (32 * team_.size())), [&](int begin, int end, int) {
    for (int g = begin; g < end;) {
      const std::size_t i = g / groups;
      const int stop = std::min(end, static_cast<int>(i + 1) * groups);
      f(chosen_[i], g - static_cast<int>(i) * groups, stop - static_cast<int>(i) * groups, i + 1 < chosen_.size() ? &chosen_[i + 1] : nullptr);
      g = stop;
    }
  });
}

// The results of a row's experts, in rising order, and of the shared one.
void Pass::combine(int id, const Layer& layer) {
  const int d = m_.sizes.hidden, each = per_token(layer);
  for (int r = share(count_, id); r < share(count_, id + 1); r++) {
    float *sum = s_.row[id], *out = s_.out + static_cast<std::size_t>(r) * d;
    std::fill(sum, sum + d, 0.0f);
    for (int i = r * each; i < (r + 1) * each; i++) {
      const float* made = s_.pair_out + static_cast<std::size_t>(pair_[i]) * d;
      for (int j = 0; j < d; j++) sum[j] += weight_[i] * made[j];
    }
    if (layer.facts.shared_width) {
      const float open = 1.0f / (1.0f + std::exp(-s_.shared_gate[r]));
      for (int j = 0; j < d; j++) sum[j] += open * out[j];
    }
    std::copy(sum, sum + d, out);
  }
}

void Pass::mixture(Member& me, const Layer& layer, const float* x) {
  const Facts& f = layer.facts;
  const Expert& any = layer.experts[0];  // all have one shape
  const bool shared = f.shared_width > 0;
  int formats = layer.expert_formats | products_[me.product].formats();
  if (shared) formats |= products_[me.product + 1].formats();
  const Acts acts = normed(me, layer.mlp_norm, layer, x, formats);
  lap(me, Clock::norm);
  multiply(me, acts);
  route(me, layer);
  const bool alone = count_ == 1;  // all its experts read the same
  if (!alone) {
    gather(me.id, acts, layer.expert_formats);
    team_.barrier();
  }
  const std::size_t width = round_up(f.expert_width, BLOCK), d = m_.sizes.hidden;
  const int blocks = acts.blocks;
  multiply_experts(me, any.gate.w.groups(), [&](const Chosen& c, int g0, int g1, const Chosen* next) {
    const Expert& e = layer.experts[c.expert];
    const Part gate = part_of(e.gate, s_.pair_inner + c.first * width, width), up = part_of(e.up, nullptr, 0);
    const std::uint8_t* ahead = next ? layer.experts[next->expert].gate.w.data : nullptr;
    k_.product(gate, &up, {Finish::gated, 1, 0, f.activation}, alone ? acts : acts_of(c, blocks), g0, g1,
               {e.gate.w.data + e.gate.w.bytes(), ahead});
  });
  if (shared) multiply(me, acts);
  lap(me, Clock::gate_up);
  const int inner = static_cast<int>(width) / BLOCK;
  own_pairs(me.id, [&](const Chosen& c, int i) {
    float* row = s_.pair_inner + (c.first + i) * width;
    std::fill(row + f.expert_width, row + width, 0.0f);  // where a row ends inside of a block
    k_.prepare(row, layer.inner_formats, acts_of(c, inner), i);
  });
  team_.barrier();
  multiply_experts(me, any.down.w.groups(), [&](const Chosen& c, int g0, int g1, const Chosen* next) {
    const Expert& e = layer.experts[c.expert];
    const std::uint8_t* ahead = next ? layer.experts[next->expert].down.w.data : nullptr;
    k_.product(part_of(e.down, s_.pair_out + c.first * d, d), nullptr, {Finish::store}, acts_of(c, inner), g0, g1,
               {e.down.w.data + e.down.w.bytes(), ahead});
  });
  if (shared) multiply(me, activated(me, f.shared_width));
  combine(me.id, layer);
  team_.barrier();
  settle(me, layer, layer.mlp_after);
  lap(me, Clock::down);
}

}  // namespace selfspec
