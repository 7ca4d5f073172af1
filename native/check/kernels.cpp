// Compares the kernel sets of this processor with each other, bit for bit, without Python: whole passes of a small
// model with the operators of all families, in every kind of weights, over chains, a tree and single rows.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>

#include <algorithm>

#include "../kernels.h"
#include "../model.h"
#include "../pack.h"

using namespace selfspec;

namespace {

std::mt19937 generator(1);
std::vector<std::vector<std::uint8_t>> packed;  // what matrices point to

std::vector<float> numbers(std::size_t count, float size) {
  std::normal_distribution<float> normal(0, size);
  std::vector<float> out(count);
  for (float& x : out) x = normal(generator);
  return out;
}

Linear linear(Kind kind, int n, int k, bool bias) {
  Matrix w{kind, n, k, nullptr};
  packed.emplace_back(w.bytes());
  pack(kind, numbers(std::size_t(n) * k, 1 / std::sqrt(float(k))).data(), n, k, packed.back().data());
  w.data = packed.back().data();
  return {w, bias ? numbers(round_up(n, GROUP), 0.3f) : std::vector<float>()};
}

Norm norm(int d, bool bias) {
  Norm made{std::vector<float>(round_up(d, BLOCK)), {}};
  if (bias) made.bias = made.weight;
  for (int i = 0; i < d; i++) made.weight[i] = 1 + 0.1f * (i % 7);
  for (int i = 0; bias && i < d; i++) made.bias[i] = 0.1f * (i % 5);
  return made;
}

// Sizes that are multiples of nothing.
const Sizes SIZES{6, 72, 100, 6, 2, 20, 75, 1e-5f};

std::vector<Facts> facts() {
  std::vector<Facts> all(SIZES.layers);
  for (Facts& f : all) f.scale = 0.2f, f.rope = 0;
  all[1].centred = true, all[1].activation.act = Act::gelu, all[1].rope = 1, all[1].parallel = true;
  all[2].activation.act = Act::gelu_tanh, all[2].cap = 3, all[2].window = 9, all[2].residual = 0.6f;
  all[3].activation.act = Act::relu, all[3].rope = -1, all[3].norm_heads = false;
  all[4].experts = 5, all[4].per_token = 2, all[4].expert_width = 20, all[4].shared_width = 36;
  all[5].experts = 4, all[5].per_token = 3, all[5].expert_width = 40, all[5].weighting = Weighting::chosen;
  all[5].activation = {Act::clipped, 0.7f, 1.7f}, all[5].window = 40;
  return all;
}

void fill(Model& m, Kind kind) {
  const Sizes& z = m.sizes;
  const std::vector<Facts> all = facts();
  for (int i = 0; i < z.layers; i++) {
    Layer& l = m.layers[i];
    l.facts = all[i], l.heads.scale = all[i].scale, l.heads.cap = all[i].cap;
    const bool bias = i % 2;
    l.q = linear(kind, z.query(), z.hidden, bias), l.k = linear(kind, z.key(), z.hidden, bias);
    l.v = linear(kind, z.key(), z.hidden, bias), l.o = linear(kind, z.hidden, z.query(), bias);
    l.attention_norm = norm(z.hidden, bias), l.mlp_norm = norm(z.hidden, bias);
    if (i == 2) l.attention_after = l.mlp_after = norm(z.hidden, false), l.q_norm = l.k_norm = norm(z.width, false);
    if (i == 3) l.q_norm = norm(z.query(), false), l.k_norm = norm(z.key(), false), l.sinks = numbers(z.heads, 1);
    if (i != 1) l.gate = linear(kind, z.intermediate, z.hidden, bias);
    l.up = linear(kind, z.intermediate, z.hidden, bias), l.down = linear(kind, z.hidden, z.intermediate, bias);
    const Facts& f = l.facts;
    if (!f.experts) continue;
    l.router = linear(Kind::fp32, f.experts, z.hidden, bias);
    for (int e = 0; e < f.experts; e++)
      l.experts.push_back({linear(kind, f.expert_width, z.hidden, bias), linear(kind, f.expert_width, z.hidden, bias),
                           linear(kind, z.hidden, f.expert_width, bias)});
    l.expert_formats = l.inner_formats = format_of(kind);
    if (!f.shared_width) continue;
    l.shared_gate = linear(kind, f.shared_width, z.hidden, false), l.shared_up = linear(kind, f.shared_width, z.hidden, false);
    l.shared_down = linear(kind, z.hidden, f.shared_width, false), l.shared_router = linear(Kind::fp32, 1, z.hidden, false);
  }
  m.head = linear(kind, z.vocabulary, z.hidden, false), m.final_norm = norm(z.hidden, true), m.logit_facts = {0.5f, 4};
}

// Logits of 150 rows in passes of `size`, then of a tree of four, and the best of its rows.
std::vector<float> pass(Model& m, Element element, int size) {
  const int d = m.sizes.hidden, length = 150;
  generator.seed(7);
  const std::vector<float> given = numbers(std::size_t(length + 4) * d, 1);
  std::vector<float> x = given, out(std::size_t(length + 4) * m.sizes.vocabulary), logit(4), lse(4);
  Cache cache({0, 0, 128, 0, 0, 128}, 1, length + 4, m.sizes.kv_heads, m.sizes.width, element);
  std::vector<Step> steps;
  for (int i = 0; i < m.sizes.layers; i++) steps.push_back({i, Sub::attention}), steps.push_back({i, Sub::mlp});
  std::vector<std::int64_t> slots(length), positions(length), index(4);
  for (int first = 0; first < length; first += size) {
    const int count = std::min(size, length - first);
    for (int r = 0; r < count; r++) positions[r] = first + r;
    m.run(x.data() + std::size_t(first) * d, steps, {count, 0, slots.data(), positions.data(), nullptr}, cache, 0, nullptr);
  }
  // the pending token, its child, a sibling of that, and a child of the sibling
  const std::int64_t depths[] = {150, 151, 151, 152};
  const std::int64_t lineage[] = {150, 150, 150, 150, 151, 151, 150, 152, 152, 150, 152, 153};
  m.run(x.data() + std::size_t(length) * d, steps, {4, 3, slots.data(), depths, lineage}, cache, 0, nullptr);
  m.logits(x.data(), length + 4, m.head.w, out.data());
  m.best(x.data() + std::size_t(length) * d, 4, m.head.w, index.data(), logit.data(), lse.data());
  out.insert(out.end(), lse.begin(), lse.end());
  return out;
}

}  // namespace

int main() {
  const char* kinds[] = {"fp32", "bf16", "fp16", "int8", "int4"};
  std::vector<const Kernels*> sets = kernel_sets();
  std::reverse(sets.begin(), sets.end());  // the portable one is what the others are compared with
  int wrong = 0, compared = 0;
  for (int kind = 0; kind < 5; kind++) {
    std::vector<float> want;
    for (const Kernels* set : sets)
      for (int threads : {1, 3})
        for (int size : {40, 7, 1}) {
          generator.seed(kind + 1), packed.clear();
          Model m(SIZES, {{numbers(10, 0.5f), false, 1.0f}, {numbers(6, 0.5f), true, 1.2f}}, *set, threads);
          fill(m, static_cast<Kind>(kind));
          const std::vector<float> got = pass(m, static_cast<Element>(kind % 4), size);
          if (want.empty()) want = got;
          const bool same = std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0;
          compared++, wrong += !same;
          if (!same) std::printf("%s differs: %s kernels, %d threads, passes of %d rows\n", kinds[kind], set->name, threads, size);
        }
    bool real = true;
    for (float x : want) real = real && std::isfinite(x);
    if (!real) wrong++, std::printf("%s: a result is no number\n", kinds[kind]);
  }
  std::printf("%d comparisons of %zu kernel sets, %d wrong\n", compared, sets.size(), wrong);
  return wrong != 0;
}
