// The phases of attention: projections, rotation into the cache, attention over paths, output.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "pass.h"

namespace selfspec {

float* Pass::table(float* of_all, int rope) const {
  std::size_t before = 0;
  for (int i = 0; i < rope; i++) before += m_.ropes[i].frequencies.size();
  return of_all + before * count_;
}

void Pass::angles(int id) {
  for (int i = 0; i < static_cast<int>(m_.ropes.size()); i++) {
    const Rope& rope = m_.ropes[i];
    const std::size_t half = rope.frequencies.size();
    float *cosines = table(s_.cosines, i), *sines = table(s_.sines, i);
    for (int r = share(count_, id); r < share(count_, id + 1); r++)
      for (std::size_t j = 0; j < half; j++) {
        const float angle = static_cast<float>(rows_->positions[r]) * rope.frequencies[j];
        cosines[r * half + j] = std::cos(angle) * rope.factor;
        sines[r * half + j] = std::sin(angle) * rope.factor;
      }
  }
}

// Queries and keys that are normed over all heads at once.
void Pass::norm_widths(int id, const Layer& layer) {
  const int q = m_.sizes.query(), kv = m_.sizes.key();
  for (int i = share(2 * count_, id); i < share(2 * count_, id + 1); i++) {
    float* x = s_.qkv + i / 2 * static_cast<std::size_t>(q + 2 * kv) + (i % 2 ? q : 0);
    const int d = i % 2 ? kv : q;
    k_.norm(x, view(i % 2 ? layer.k_norm : layer.q_norm, d, layer.facts.centred), s_.row[id]);
    std::memcpy(x, s_.row[id], sizeof(float) * d);
  }
}

// Turn queries and keys, and write keys and values into their cells.
void Pass::place(int id, const Layer& layer, int index) {
  const Sizes& z = m_.sizes;
  const Heads& h = layer.heads;
  const std::size_t q = z.query(), kv = z.key();
  const bool turns = layer.facts.rope >= 0, norms = layer.facts.norm_heads && layer.q_norm.there();
  const Turn turn = turns ? m_.ropes[layer.facts.rope].turn() : Turn{};
  const float *cosines = turns ? table(s_.cosines, layer.facts.rope) : nullptr, *sines = turns ? table(s_.sines, layer.facts.rope) : nullptr;
  float *buffer = s_.row[id], *turned = buffer + round_up(h.width, BLOCK);
  const auto rotate = [&](const float* x, const Norm& norm, std::size_t angle, float* out) {
    if (norms) {
      k_.norm(x, view(norm, h.width, layer.facts.centred), buffer);
      x = buffer;
    }
    k_.rotate(x, cosines + angle, sines + angle, turn, h, out);
  };
  const int items = count_ * z.kv_heads;
  for (int i = share(items, id); i < share(items, id + 1); i++) {
    const int r = i / z.kv_heads, head = i % z.kv_heads, slot = static_cast<int>(rows_->slots[r]);
    const float* row = s_.qkv + r * (q + 2 * kv);
    const std::size_t angle = static_cast<std::size_t>(r) * (turn.dims / 2);
    for (int g = head * h.group; g < (head + 1) * h.group; g++)
      rotate(row + g * h.width, layer.q_norm, angle, s_.queries + (static_cast<std::size_t>(r) * z.heads + g) * h.padded);
    rotate(row + q + head * h.width, layer.k_norm, angle, turned);
    const std::int64_t cell = rows_->cell(r);
    k_.store_key(turned, cache_->key_block(index, slot, head, cell), cell % 16, cache_->element(), h);
    k_.store_value(row + q + kv + head * h.width, cache_->value_cell(index, slot, head, cell), cache_->element(), h);
  }
}

const Tiling& Pass::tiling(const Layer& layer) const {
  return *std::find_if(tilings_.begin(), tilings_.end(), [&](const Tiling& t) { return t.window == layer.facts.window; });
}

const void* Pass::keys_of(const Piece& piece, int layer) const {
  return cache_->key_block(layer, static_cast<int>(rows_->slots[piece.first]), piece.head, piece.low * SEGMENT);
}

void Pass::attend(Member& me, const Layer& layer, int index, const Piece& piece, const Piece* next) {
  const Heads& h = layer.heads;
  const Tiling& tiles = tiling(layer);
  const int slot = static_cast<int>(rows_->slots[piece.first]);
  Attend task;
  task.keys = cache_->keys(index, slot, piece.head), task.values = cache_->values(index, slot, piece.head);
  if (next) task.next = keys_of(*next, index);
  task.places = cache_->places(index), task.element = cache_->element();
  task.query_stride = static_cast<std::size_t>(m_.sizes.heads) * h.padded;
  task.queries = s_.queries + piece.first * task.query_stride + piece.head * h.group * h.padded;
  task.paths = tiles.paths.data() + piece.first, task.rows = piece.rows;
  task.first = piece.low, task.last = piece.high;
  task.folded = tiles.partials == 1;
  task.head_stride = tiles.stride(h), task.row_stride = m_.sizes.heads * task.head_stride;
  task.partials = s_.partials + piece.first * task.row_stride + piece.head * h.group * task.head_stride;
  task.scratch = s_.attend[me.id];
  k_.attend(task, h);
}

void Pass::attend(Member& me, const Layer& layer, int index) {
  // neighbours are read one after the other by one member, which then helps the others
  const std::vector<Piece>& pieces = tiling(layer).pieces;
  divide(me, static_cast<int>(pieces.size()), 1, [&](int i, int, int last) {
    attend(me, layer, index, pieces[i], i + 1 < last ? &pieces[i + 1] : nullptr);
  });
}

// The results of attention, folded from their segments.
Acts Pass::folded(Member& me, const Layer& layer) {
  const Heads& h = layer.heads;
  const Tiling& tiles = tiling(layer);
  const std::size_t stride = tiles.stride(h);
  const int width = m_.sizes.query();
  return prepared(me, width, products_[me.product].formats(), [&](int r, float* buffer) {
    const int count = tiles.partials == 1 ? 1 : tiles.segments(r);
    for (int head = 0; head < m_.sizes.heads; head++)
      k_.fold(s_.partials + (static_cast<std::size_t>(r) * m_.sizes.heads + head) * stride, count, h,
              layer.sinks.empty() ? nullptr : &layer.sinks[head], s_.attend[me.id], buffer + head * h.width);
    std::fill(buffer + width, buffer + round_up(width, BLOCK), 0.0f);
    return static_cast<const float*>(buffer);
  });
}

// What attention reads where a row has a second vector: that one, then the stream's, each through its own norm.
Acts Pass::joined(Member& me, const Layer& layer, int formats) {
  const int d = m_.sizes.hidden, both = 2 * d;
  const NormView first = view(layer.beside_norm, d, layer.facts.centred), second = view(layer.attention_norm, d, layer.facts.centred);
  return prepared(me, both, formats, [&](int r, float* buffer) {
    k_.norm(beside_ + static_cast<std::size_t>(r) * d, first, buffer);
    k_.norm(x_ + static_cast<std::size_t>(r) * d, second, buffer + d);  // over the zeros behind the first
    std::fill(buffer + both, buffer + round_up(both, BLOCK), 0.0f);
    return static_cast<const float*>(buffer);
  });
}

void Pass::attention(Member& me, const Layer& layer, int index) {
  if (layer.facts.parallel) {  // the MLP reads what enters the layer; x is written after the next barriers
    const std::size_t d = m_.sizes.hidden, first = share(count_, me.id) * d, last = share(count_, me.id + 1) * d;
    std::copy(x_ + first, x_ + last, s_.entered + first);
  }
  const int formats = products_[me.product].formats();
  const Acts x = layer.facts.beside ? joined(me, layer, formats) : normed(me, layer.attention_norm, layer, x_, formats);
  lap(me, Clock::norm);
  multiply(me, x);
  lap(me, Clock::qkv);
  if (!layer.facts.norm_heads && layer.q_norm.there()) {
    norm_widths(me.id, layer);
    team_.barrier();
  }
  place(me.id, layer, index);
  team_.barrier();
  lap(me, Clock::place);
  attend(me, layer, index);
  lap(me, Clock::attend);
  multiply(me, folded(me, layer));
  if (layer.attention_after.there()) settle(me, layer, layer.attention_after);
  lap(me, Clock::out);
}

}  // namespace selfspec
