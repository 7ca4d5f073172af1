#include "scratch.h"

#include <algorithm>

namespace selfspec {
namespace {

// Carves aligned pieces out of one block of memory; without memory it only counts.
struct Carver {
  char* base;
  std::size_t used = 0;
  template <class T> T* take(std::size_t count) {
    T* piece = base ? reinterpret_cast<T*>(base + used) : nullptr;
    used += (count * sizeof(T) + 64 + 63) / 64 * 64;  // 64 bytes between: vectors may be stored past an end
    return piece;
  }
  void acts(Acts& a, std::size_t rows, std::size_t inputs) {
    a.floats = take<float>(rows * inputs), a.words = take<std::int16_t>(rows * inputs);
    a.bytes = take<std::int8_t>(rows * inputs), a.scales = take<float>(rows * inputs / BLOCK * 2);
  }
};

void carve(Carver& c, Scratch& s, std::size_t rows, const Sizes& z, const Heads& h, const Widest& widest, int members) {
  const std::size_t inputs = widest.inputs;
  c.acts(s.shared, rows, inputs);
  s.own.resize(members), s.row.resize(members), s.attend.resize(members);
  for (int i = 0; i < members; i++) {
    c.acts(s.own[i], 1, inputs);
    s.row[i] = c.take<float>(inputs + h.padded);
    s.attend[i] = c.take<float>(attend_scratch(h));
  }
  s.qkv = c.take<float>(rows * (z.query() + 2 * z.key()));
  s.queries = c.take<float>(rows * z.heads * h.padded);
  s.inner = c.take<float>(rows * round_up(widest.inner, BLOCK));
  s.out = c.take<float>(rows * z.hidden), s.entered = c.take<float>(rows * z.hidden);
  s.cosines = c.take<float>(rows * widest.angles), s.sines = c.take<float>(rows * widest.angles);
  s.routed = c.take<float>(rows * widest.experts), s.shared_gate = c.take<float>(rows);
}

void carve_pairs(Carver& c, Scratch& s, std::size_t pairs, const Sizes& z, const Widest& widest) {
  c.acts(s.paired, pairs, round_up(std::max(z.hidden, widest.expert_width), BLOCK));
  s.pair_inner = c.take<float>(pairs * round_up(widest.expert_width, BLOCK));
  s.pair_out = c.take<float>(pairs * z.hidden);
}

// Runs f twice: to count, and to hand out the pieces.
template <class F> void allocate(Memory& memory, F f) {
  Carver count{nullptr}, real{nullptr};
  f(count);
  memory = Memory(count.used);
  real.base = memory.as<char>();
  f(real);
}

// Whether there is too little; if so it counts as nothing until there is enough.
bool grows(std::size_t& held, std::size_t wanted) {
  if (held >= wanted) return false;
  held = 0;
  return true;
}

}  // namespace

void Scratch::reserve(const Room& room, const Sizes& z, const Heads& h, const Widest& widest, int members) {
  if (!(widest == widest_)) held_ = {}, widest_ = widest;  // a model that was given other weights since
  if (grows(held_.rows, room.rows)) {
    const std::size_t wanted = std::max<std::size_t>(room.rows, 16);
    allocate(memory_, [&](Carver& c) { carve(c, *this, wanted, z, h, widest, members); });
    held_.rows = wanted;
  }
  if (grows(held_.partials, room.partials)) {
    allocate(partial_memory_, [&](Carver& c) { partials = c.take<float>(room.partials); });
    held_.partials = room.partials;
  }
  if (grows(held_.bests, room.bests)) {
    allocate(best_memory_, [&](Carver& c) { best = c.take<Best>(room.bests); });
    held_.bests = room.bests;
  }
  if (grows(held_.pairs, room.pairs)) {
    allocate(pair_memory_, [&](Carver& c) { carve_pairs(c, *this, room.pairs, z, widest); });
    held_.pairs = room.pairs;
  }
}

}  // namespace selfspec
