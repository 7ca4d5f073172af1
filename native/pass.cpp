#include "pass.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace selfspec {

Part part_of(const Linear& linear, float* out, std::size_t stride) {
  return {linear.w, linear.bias.empty() ? nullptr : linear.bias.data(), out, stride, nullptr};
}

int Product::groups() const {
  if (ending.finish == Finish::gated) return parts[0].w.groups();
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
  if (ending.finish != Finish::gated)
    for (; i + 1 < count && group >= parts[i].w.groups(); i++) group -= parts[i].w.groups();
  return parts[i].w.data + group * parts[i].w.group_bytes();
}

// -- before the job: what will be multiplied, and which pieces attention has ---------------------------------

void Pass::reserve(const std::vector<Step>& steps) {
  Room room{static_cast<std::size_t>(count_), 0, 0, 0};
  for (const Step& step : steps) {
    const Layer& layer = m_.layers[step.layer];
    const Facts& facts = layer.facts;
    if (step.part == Sub::mlp) {
      if (facts.experts) room.pairs = std::max(room.pairs, room.rows * per_token(layer));
      continue;
    }
    const bool known = std::any_of(tilings_.begin(), tilings_.end(), [&](const Tiling& t) { return t.window == facts.window; });
    if (!known) tilings_.emplace_back(*rows_, facts.window, m_.sizes, layer.heads, team_.size());
    room.partials = std::max(room.partials, room.rows * m_.sizes.heads * tiling(layer).stride(layer.heads));
  }
  m_.reserve(room);
  expert_.resize(room.pairs), pair_.resize(room.pairs), weight_.resize(room.pairs), row_of_pair_.resize(room.pairs);
  chosen_.reserve(room.pairs), next_.resize(room.pairs ? m_.widest().experts : 0);
}

// Without a norm behind it, a part is added to the residual stream at once.
Ending Pass::ending_of(const Layer& layer, const Norm& after) const {
  if (after.there()) return {Finish::store};
  return {Finish::add, layer.facts.residual};
}

void Pass::plan_attention(const Layer& layer) {
  const std::size_t q = m_.sizes.query(), kv = m_.sizes.key(), d = m_.sizes.hidden, all = q + 2 * kv;
  products_.push_back({{part_of(layer.q, s_.qkv, all), part_of(layer.k, s_.qkv + q, all),
                        part_of(layer.v, s_.qkv + q + kv, all)}, 3});
  float* out = layer.attention_after.there() ? s_.out : x_;
  products_.push_back({{part_of(layer.o, out, d)}, 1, ending_of(layer, layer.attention_after)});
}

void Pass::plan_mlp(const Layer& layer) {
  const Facts& f = layer.facts;
  const std::size_t d = m_.sizes.hidden;
  if (f.experts) {  // what all rows have; the experts are chosen later
    const bool shared = f.shared_width > 0;
    products_.push_back({{part_of(layer.router, s_.routed, f.experts), part_of(layer.shared_router, s_.shared_gate, 1)},
                         shared ? 2 : 1});
    if (!shared) return;
    const std::size_t width = round_up(f.shared_width, BLOCK);
    products_.push_back({{part_of(layer.shared_gate, s_.inner, width), part_of(layer.shared_up, nullptr, 0)}, 2,
                         {Finish::gated, 1, 0, f.activation}});
    products_.push_back({{part_of(layer.shared_down, s_.out, d)}, 1});
    return;
  }
  const std::size_t width = round_up(m_.sizes.intermediate, BLOCK);
  if (layer.gate.there())
    products_.push_back({{part_of(layer.gate, s_.inner, width), part_of(layer.up, nullptr, 0)}, 2,
                         {Finish::gated, 1, 0, f.activation}});
  else
    products_.push_back({{part_of(layer.up, s_.inner, width)}, 1, {Finish::activated, 1, 0, f.activation}});
  products_.push_back({{part_of(layer.down, layer.mlp_after.there() ? s_.out : x_, d)}, 1, ending_of(layer, layer.mlp_after)});
}

void Pass::plan(const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    if (step.part == Sub::attention) plan_attention(m_.layers[step.layer]);
    else plan_mlp(m_.layers[step.layer]);
  }
}

void Pass::layers(const std::vector<Step>& steps, const Rows& rows, Cache& cache, int experts, const float* beside) {
  rows_ = &rows, cache_ = &cache, experts_ = experts, beside_ = beside;
  reserve(steps);
  plan(steps);
  counters_.clear(0);
  team_.run([&](int id) {
    Member me{.id = id};
    lap(me, Clock::start);
    angles(id);
    team_.barrier();
    lap(me, Clock::place);
    int entered = -1;  // the layer whose entrance is kept
    for (const Step& step : steps) {
      const Layer& layer = m_.layers[step.layer];
      if (step.part == Sub::attention) {
        attention(me, layer, step.layer);
        entered = step.layer;
      } else {
        mlp(me, layer, layer.facts.parallel && entered == step.layer ? s_.entered : x_);
      }
      // nobody writes x before the next barrier
      if (step.tap && id == 0) std::memcpy(step.tap, x_, sizeof(float) * count_ * m_.sizes.hidden);
    }
  });
}

void Pass::head(const Product& product) {
  m_.reserve({static_cast<std::size_t>(count_), 0, 0, 0});
  products_.push_back(product);
  products_[0].ending.scale = m_.logit_facts.scale, products_[0].ending.cap = m_.logit_facts.cap;
  counters_.clear(0);
  team_.run([&](int id) {
    Member me{.id = id};
    lap(me, Clock::start);
    const NormView last = view(m_.final_norm, m_.sizes.hidden, m_.final_centred);
    multiply(me, prepared(me, m_.sizes.hidden, product.formats(), [&](int r, float* buffer) {
      k_.norm(x_ + static_cast<std::size_t>(r) * m_.sizes.hidden, last, buffer);
      return static_cast<const float*>(buffer);
    }));
    lap(me, Clock::head);
  });
}

// A product alone, of rows as they are.
void Pass::product(const Product& product) {
  m_.reserve({static_cast<std::size_t>(count_), 0, 0, 0});
  products_.push_back(product);
  counters_.clear(0);
  team_.run([&](int id) {
    Member me{.id = id};
    lap(me, Clock::start);
    multiply(me, whole(me, x_, product.inputs(), product.inputs()));
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

NormView Pass::view(const Norm& norm, int d, bool centred) const {
  return {norm.there() ? norm.weight.data() : nullptr, norm.bias.empty() ? nullptr : norm.bias.data(), d, m_.sizes.eps, centred};
}

Acts Pass::normed(Member& me, const Norm& norm, const Layer& layer, const float* x, int formats) {
  const NormView v = view(norm, m_.sizes.hidden, layer.facts.centred);
  return prepared(me, m_.sizes.hidden, formats, [&](int r, float* buffer) {
    k_.norm(x + static_cast<std::size_t>(r) * m_.sizes.hidden, v, buffer);
    return static_cast<const float*>(buffer);
  });
}

// Rows as they are, in whole blocks: where they end inside of one, its rest may be of another layer, or the next row.
Acts Pass::whole(Member& me, const float* rows, int width, int stride) {
  return prepared(me, width, products_[me.product].formats(), [&](int r, float* buffer) {
    const float* row = rows + static_cast<std::size_t>(r) * stride;
    if (width % BLOCK == 0) return row;
    std::copy(row, row + width, buffer);
    std::fill(buffer + width, buffer + round_up(width, BLOCK), 0.0f);
    return static_cast<const float*>(buffer);
  });
}

void Pass::multiply(Member& me, const Acts& acts) {
  const Product& p = products_[me.product++];
  const bool more = me.product < static_cast<int>(products_.size());
  const Product* after = more ? &products_[me.product] : nullptr;
  const std::uint8_t* next = after ? after->at(share(after->groups(), me.id)) : nullptr;
  // with several panels of rows a larger piece, so that a panel is used often while it is in the cache
  const int total = p.groups(), piece = std::max(1, total / ((count_ > PANEL ? 4 : 32) * team_.size()));
  divide(me, total, piece, [&](int g0, int g1, int last) { groups(p, acts, g0, g1, {p.at(last - 1), next}); });
}

// Groups [g0, g1) of a product; `ahead.end` is the begin of the last group of the share.
void Pass::groups(const Product& p, const Acts& acts, int g0, int g1, Ahead ahead) {
  if (p.ending.finish == Finish::gated) {
    ahead.end += p.parts[0].w.group_bytes();
    return k_.product(p.parts[0], &p.parts[1], p.ending, acts, g0, g1, ahead);
  }
  for (int i = 0; i < p.count; i++) {
    const Part& part = p.parts[i];
    const int groups = part.w.groups(), low = std::max(g0, 0), high = std::min(g1, groups);
    if (low < high) {
      const std::uint8_t *begin = part.w.data, *end = begin + part.w.bytes();
      Ahead own = ahead;
      if (ahead.end >= begin && ahead.end < end) own.end += part.w.group_bytes();
      else own = {end, i + 1 < p.count ? p.parts[i + 1].w.data : ahead.next};
      k_.product(part, nullptr, p.ending, acts, low, high, own);
    }
    g0 -= groups, g1 -= groups;
  }
}

// What a part made is normed, scaled, and added to the residual stream.
void Pass::settle(Member& me, const Layer& layer, const Norm& after) {
  const int d = m_.sizes.hidden;
  const NormView v = view(after, d, layer.facts.centred);
  for (int r = share(count_, me.id); r < share(count_, me.id + 1); r++) {
    float *made = s_.row[me.id], *x = x_ + static_cast<std::size_t>(r) * d;
    k_.norm(s_.out + static_cast<std::size_t>(r) * d, v, made);
    for (int i = 0; i < d; i++) x[i] += layer.facts.residual * made[i];
  }
  team_.barrier();
}

void Pass::mlp(Member& me, const Layer& layer, const float* x) {
  if (layer.facts.experts) return mixture(me, layer, x);
  const Acts acts = normed(me, layer.mlp_norm, layer, x, products_[me.product].formats());
  lap(me, Clock::norm);
  multiply(me, acts);
  lap(me, Clock::gate_up);
  multiply(me, activated(me, m_.sizes.intermediate));
  if (layer.mlp_after.there()) settle(me, layer, layer.mlp_after);
  lap(me, Clock::down);
}

}  // namespace selfspec
