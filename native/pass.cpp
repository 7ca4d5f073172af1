#include "pass.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

namespace selfspec {
namespace {

Part part_of(const Linear& linear, float* out, std::size_t stride) {
  return {linear.w, linear.bias.empty() ? nullptr : linear.bias.data(), out, stride, nullptr};
}

int segments_of(int length) { return (length + SEGMENT - 1) / SEGMENT; }

}  // namespace

int Product::groups() const {
  if (finish == Finish::swiglu) return parts[0].w.groups();
  int total = 0;
  for (int i = 0; i < count; i++) total += parts[i].w.groups();
  return total;
}

int Product::formats() const {
  int formats = 0;
  for (int i = 0; i < count; i++) formats |= format_of(parts[i].w.kind);
  return formats;
}

const std::uint8_t* Product::at(int group) const {
  int i = 0;
  for (; finish == Finish::store && i + 1 < count && group >= parts[i].w.groups(); i++) group -= parts[i].w.groups();
  return parts[i].w.data + group * parts[i].w.group_bytes();
}

Path Rows::path(int r) const {
  const int length = static_cast<int>(positions[r]) + 1;
  if (!lineage) return {length, length, nullptr};
  const std::int64_t* line = lineage + static_cast<std::int64_t>(r) * depth;
  const int root = static_cast<int>(line[0]);
  int direct = root;
  while (direct < length && line[direct - root] == direct) direct++;
  return {length, direct, line + (direct - root)};
}

// -- before the job: what will be multiplied, and which pieces attention has ---------------------------------

void Pass::plan(const std::vector<Step>& steps) {
  const std::size_t q = m_.sizes.query(), kv = m_.sizes.key(), d = m_.sizes.hidden, all = q + 2 * kv;
  const std::size_t ff = round_up(m_.sizes.intermediate, BLOCK);
  for (const Step& step : steps) {
    const Layer& layer = m_.layers[step.layer];
    if (step.part == Sub::attention) {
      products_.push_back({{part_of(layer.q, s_.qkv, all), part_of(layer.k, s_.qkv + q, all),
                            part_of(layer.v, s_.qkv + q + kv, all)}, 3, Finish::store});
      products_.push_back({{part_of(layer.o, x_, d)}, 1, Finish::add});
    } else {
      products_.push_back({{part_of(layer.gate, s_.hidden, ff), part_of(layer.up, nullptr, 0)}, 2, Finish::swiglu});
      products_.push_back({{part_of(layer.down, x_, d)}, 1, Finish::add});
    }
  }
}

void Pass::tile(const Rows& rows) {
  int most = 0;
  for (int r = 0; r < count_; r++) {
    paths_.push_back(rows.path(r));
    most = std::max(most, paths_.back().length);
  }
  std::vector<Item> tiles;
  for (int r = 0; r < count_;) {
    Item tile{r, 1, 0, 0, segments_of(paths_[r].length)};
    while (++r < count_ && tile.rows < rows_per_tile(m_.heads) && rows.slots[r] == rows.slots[tile.first]) {
      tile.high = std::max(tile.high, segments_of(paths_[r].length));
      tile.rows++;
    }
    tiles.push_back(tile);
  }
  // few pieces: one for each segment, folded afterwards; the bits are the same
  const bool apart = tiles.size() * m_.sizes.kv_heads < 4u * team_.size() && count_ * segments_of(most) <= 4096;
  if (apart) partials_ = segments_of(most);
  for (auto tile = tiles.rbegin(); tile != tiles.rend(); ++tile)  // the longest first
    for (int head = 0; head < m_.sizes.kv_heads; head++)
      for (int low = 0; low < (apart ? tile->high : 1); low++)
        items_.push_back({tile->first, tile->rows, head, apart ? low : 0, apart ? low + 1 : tile->high});
}

void Pass::layers(const std::vector<Step>& steps, const Rows& rows, Cache& cache) {
  rows_ = &rows, cache_ = &cache;
  tile(rows);
  m_.reserve(count_, partials_ * count_ * m_.sizes.heads * (m_.heads.padded + 8), 0);
  plan(steps);
  counters_.clear(0);
  team_.run([&](int id) {
    Member me{.id = id};
    lap(me, Clock::start);
    angles(id);
    team_.barrier();
    lap(me, Clock::place);
    for (const Step& step : steps) {
      const Layer& layer = m_.layers[step.layer];
      if (step.part == Sub::attention) attention(me, layer, step.layer);
      else mlp(me, layer);
      // nobody writes x before the next barrier
      if (step.tap && id == 0) std::memcpy(step.tap, x_, sizeof(float) * count_ * m_.sizes.hidden);
    }
  });
}

void Pass::head(const Product& product) {
  m_.reserve(count_, 0, 0);
  products_.push_back(product);
  counters_.clear(0);
  team_.run([&](int id) {
    Member me{.id = id};
    lap(me, Clock::start);
    multiply(me, normed(me, m_.final_norm));
    lap(me, Clock::head);
  });
}

// -- inside of the job: every member runs these ------------------------------------------------------------

void Pass::lap(Member& me, Clock clock) {
  if (!m_.timed || me.id != 0) return;
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  const double now = std::chrono::duration<double>(since).count();
  if (clock != Clock::start) m_.seconds[static_cast<std::size_t>(clock)] += now - me.clock;
  me.clock = now;
}

// A phase takes pieces from a set of counters; member 0 clears the next set, which nobody uses yet.
void Pass::begin(Member& me) {
  if (me.id == 0) counters_.clear(me.phase + 1);
}
void Pass::end(Member& me) {
  me.phase++;
  team_.barrier();
}

void Pass::angles(int id) {
  const int half = m_.heads.width / 2;
  for (int r = share(count_, id); r < share(count_, id + 1); r++)
    for (int i = 0; i < half; i++) {
      const float angle = static_cast<float>(rows_->positions[r]) * m_.frequencies[i];
      s_.cosines[static_cast<std::size_t>(r) * half + i] = std::cos(angle);
      s_.sines[static_cast<std::size_t>(r) * half + i] = std::sin(angle);
    }
}

// The activations of the next product: row(r, buffer) gives the floats of row r. A single row is made by every
// member for itself, which is cheaper than to meet.
template <class F> Acts Pass::prepared(Member& me, F row) {
  const Product& next = products_[me.product];
  const bool alone = count_ == 1;
  Acts acts = alone ? s_.own[me.id] : s_.shared;
  acts.rows = count_, acts.blocks = (next.inputs() + BLOCK - 1) / BLOCK;
  const int formats = next.formats();
  const int first = alone ? 0 : share(count_, me.id), last = alone ? 1 : share(count_, me.id + 1);
  for (int r = first; r < last; r++) k_.prepare(row(r, s_.row[me.id]), formats, acts, r);
  if (!alone) team_.barrier();
  return acts;
}

Acts Pass::normed(Member& me, const std::vector<float>& weight) {
  return prepared(me, [&](int r, float* buffer) {
    k_.norm(x_ + static_cast<std::size_t>(r) * m_.sizes.hidden, weight.data(), m_.sizes.hidden, m_.sizes.eps, buffer);
    return static_cast<const float*>(buffer);
  });
}

void Pass::multiply(Member& me, const Acts& acts) {
  const Product& p = products_[me.product++];
  const bool more = me.product < static_cast<int>(products_.size());
  const Product* after = more ? &products_[me.product] : nullptr;
  const std::uint8_t* next = after ? after->at(share(after->groups(), me.id)) : nullptr;
  begin(me);
  // with several panels of rows a larger piece, so that a panel is used often while it is in the cache
  const int total = p.groups(), size = team_.size(), piece = std::max(1, total / ((count_ > PANEL ? 4 : 32) * size));
  for (int i = 0; i < size; i++) {  // the own share first, then what the others have left
    const int owner = (me.id + i) % size, first = share(total, owner), last = share(total, owner + 1);
    std::atomic<int>& taken = counters_.at(me.phase, owner);
    for (int g; (g = first + taken.fetch_add(piece, std::memory_order_relaxed)) < last;)
      groups(p, acts, g, std::min(g + piece, last), {p.at(last - 1), next});
  }
  end(me);
}

// Groups [g0, g1) of a product; `ahead.end` is the begin of the last group of the share.
void Pass::groups(const Product& p, const Acts& acts, int g0, int g1, Ahead ahead) {
  if (p.finish == Finish::swiglu) {
    ahead.end += p.parts[0].w.group_bytes();
    return k_.product(p.parts[0], &p.parts[1], p.finish, acts, g0, g1, ahead);
  }
  for (int i = 0; i < p.count; i++) {
    const Part& part = p.parts[i];
    const int groups = part.w.groups(), low = std::max(g0, 0), high = std::min(g1, groups);
    if (low < high) {
      const std::uint8_t *begin = part.w.data, *end = begin + part.w.bytes();
      Ahead own = ahead;
      if (ahead.end >= begin && ahead.end < end) own.end += part.w.group_bytes();
      else own = {end, i + 1 < p.count ? p.parts[i + 1].w.data : ahead.next};
      k_.product(part, nullptr, p.finish, acts, low, high, own);
    }
    g0 -= groups, g1 -= groups;
  }
}

// Turn queries and keys, and write keys and values into their cells.
void Pass::place(int id, int layer) {
  const Sizes& z = m_.sizes;
  const Heads& h = m_.heads;
  const std::size_t q = z.query(), kv = z.key();
  float* turned = s_.row[id];
  const int items = count_ * z.kv_heads;
  for (int i = share(items, id); i < share(items, id + 1); i++) {
    const int r = i / z.kv_heads, head = i % z.kv_heads, slot = static_cast<int>(rows_->slots[r]);
    const float* row = s_.qkv + r * (q + 2 * kv);
    const float *cosines = s_.cosines + r * std::size_t(h.width / 2), *sines = s_.sines + r * std::size_t(h.width / 2);
    for (int g = head * h.group; g < (head + 1) * h.group; g++)
      k_.rotate(row + g * h.width, cosines, sines, h, s_.queries + (static_cast<std::size_t>(r) * z.heads + g) * h.padded);
    k_.rotate(row + q + head * h.width, cosines, sines, h, turned);
    const std::int64_t cell = rows_->cell(r);
    k_.store_key(turned, cache_->key_block(layer, slot, head, cell), cell % 16, cache_->half(), h);
    k_.store_value(row + q + kv + head * h.width, cache_->value_cell(layer, slot, head, cell), cache_->half(), h);
  }
}

const void* Pass::keys_of(const Item& item, int layer) const {
  return cache_->key_block(layer, static_cast<int>(rows_->slots[item.first]), item.head, item.low * SEGMENT);
}

void Pass::attend(Member& me, int layer, const Item& item, const Item* next) {
  const Heads& h = m_.heads;
  const int slot = static_cast<int>(rows_->slots[item.first]);
  Attend task;
  task.keys = cache_->keys(layer, slot, item.head), task.values = cache_->values(layer, slot, item.head);
  if (next) task.next = keys_of(*next, layer);
  task.half = cache_->half();
  task.query_stride = static_cast<std::size_t>(m_.sizes.heads) * h.padded;
  task.queries = s_.queries + item.first * task.query_stride + item.head * h.group * h.padded;
  task.paths = paths_.data() + item.first, task.rows = item.rows;
  task.first = item.low, task.last = item.high;
  task.folded = partials_ == 1;
  task.head_stride = partials_ * (h.padded + 8), task.row_stride = m_.sizes.heads * task.head_stride;
  task.partials = s_.partials + item.first * task.row_stride + item.head * h.group * task.head_stride;
  task.scratch = s_.attend[me.id];
  k_.attend(task, h);
}

void Pass::attend(Member& me, int layer) {
  begin(me);
  // neighbours are read one after the other by one member, which then helps the others
  const int total = static_cast<int>(items_.size()), size = team_.size();
  for (int j = 0; j < size; j++) {
    const int owner = (me.id + j) % size, first = share(total, owner), last = share(total, owner + 1);
    std::atomic<int>& taken = counters_.at(me.phase, owner);
    for (int i; (i = first + taken.fetch_add(1, std::memory_order_relaxed)) < last;)
      attend(me, layer, items_[i], i + 1 < last ? &items_[i + 1] : nullptr);
  }
  end(me);
}

// The results of attention, folded from their segments.
Acts Pass::folded(Member& me) {
  const Heads& h = m_.heads;
  const std::size_t stride = partials_ * (h.padded + 8);
  return prepared(me, [&](int r, float* buffer) {
    const int count = partials_ == 1 ? 1 : segments_of(paths_[r].length), width = m_.sizes.query();
    for (int head = 0; head < m_.sizes.heads; head++)
      k_.fold(s_.partials + (static_cast<std::size_t>(r) * m_.sizes.heads + head) * stride, count, h,
              s_.attend[me.id], buffer + head * h.width);
    std::fill(buffer + width, buffer + round_up(width, BLOCK), 0.0f);
    return static_cast<const float*>(buffer);
  });
}

void Pass::attention(Member& me, const Layer& layer, int index) {
  const Acts x = normed(me, layer.attention_norm);
  lap(me, Clock::norm);
  multiply(me, x);
  lap(me, Clock::qkv);
  place(me.id, index);
  team_.barrier();
  lap(me, Clock::place);
  attend(me, index);
  lap(me, Clock::attend);
  multiply(me, folded(me));
  lap(me, Clock::out);
}

void Pass::mlp(Member& me, const Layer& layer) {
  const Acts x = normed(me, layer.mlp_norm);
  lap(me, Clock::norm);
  multiply(me, x);
  lap(me, Clock::gate_up);
  const std::size_t ff = round_up(m_.sizes.intermediate, BLOCK);
  multiply(me, prepared(me, [&](int r, float*) { return static_cast<const float*>(s_.hidden + r * ff); }));
  lap(me, Clock::down);
}

}  // namespace selfspec
