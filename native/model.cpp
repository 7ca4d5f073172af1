#include "model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "pass.h"

namespace selfspec {

Model::Model(const Sizes& z, std::vector<Rope> turns, const Kernels& set, int threads)
    : sizes(z), ropes(std::move(turns)), kernels(set), layers(z.layers), teams_(threads) {
  const Heads heads{z.heads / z.kv_heads, z.width, round_up(z.width, 8), 1.0f / std::sqrt(static_cast<float>(z.width)), 0};
  for (Layer& layer : layers) layer.heads = heads;
}

Widest Model::widest() const {
  Widest w;
  w.inner = sizes.intermediate;
  for (const Layer& layer : layers) {
    w.inner = std::max(w.inner, layer.facts.shared_width);
    w.experts = std::max(w.experts, layer.facts.experts);
    w.expert_width = std::max(w.expert_width, layer.facts.expert_width);
  }
  for (const Layer& layer : layers) w.inputs = std::max(w.inputs, layer.facts.beside ? 2 * round_up(sizes.hidden, BLOCK) : 0);
  w.inputs = round_up(std::max({w.inputs, sizes.hidden, w.inner, w.expert_width, sizes.query(), transform.w.k}), BLOCK);
  for (const Rope& rope : ropes) w.angles += static_cast<int>(rope.frequencies.size());
  return w;
}

void Model::reserve(const Room& room) { scratch_.reserve(room, sizes, layers[0].heads, widest(), threads()); }

void Model::run(float* x, const std::vector<Step>& steps, const Rows& rows, Cache& cache, int experts, const float* beside) {
  teams_.run([&](Team& team) { Pass(*this, team, rows.count, x).layers(steps, rows, cache, experts, beside); });
}

void Model::transformed(const float* x, int rows, float* out, bool adds) {
  teams_.run([&](Team& team) {
    // a product only reads x
    Pass(*this, team, rows, const_cast<float*>(x))
        .product({{part_of(transform, out, static_cast<std::size_t>(transform.w.n))}, 1, {adds ? Finish::add : Finish::store}});
  });
}

void Model::logits(const float* x, int rows, const Matrix& w, float* out) {
  teams_.run([&](Team& team) {
    // the head only reads x
    Pass(*this, team, rows, const_cast<float*>(x))
        .head({{{w, nullptr, out, static_cast<std::size_t>(w.n), nullptr}}, 1, {Finish::store}});
  });
}

void Model::best(const float* x, int rows, const Matrix& w, std::int64_t* index, float* logit, float* lse) {
  teams_.run([&](Team& team) {
    const int groups = w.groups();
    reserve({0, 0, static_cast<std::size_t>(rows) * groups, 0});
    Pass(*this, team, rows, const_cast<float*>(x))
        .head({{{w, nullptr, nullptr, 0, scratch_.best}}, 1, {Finish::best}});
    for (int r = 0; r < rows; r++) {
      const Best* all = scratch_.best + static_cast<std::size_t>(r) * groups;
      const Best* top = std::max_element(all, all + groups, [](const Best& a, const Best& b) { return a.logit < b.logit; });
      index[r] = top->index, logit[r] = top->logit;
      lse[r] = top->logit + std::log(kernels.total(all, groups, top->logit));
    }
  });
}

void Model::sweep(const std::vector<std::pair<const std::uint8_t*, std::size_t>>& spans) {
  teams_.run([&](Team& team) {
    std::vector<float> sums(team.size());
    team.run([&](int id) {
      for (const auto& [data, size] : spans) {
        const std::size_t lines = size / 64, first = lines * id / team.size(), last = lines * (id + 1) / team.size();
        sums[id] += kernels.sweep(data + first * 64, (last - first) * 64);
      }
    });
  });
}

void largest(const float* logits, int n, int k, std::int64_t* index, float* logit) {
  std::vector<std::int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](std::int32_t a, std::int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  std::partial_sort(order.begin(), order.begin() + k, order.end(), before);
  for (int i = 0; i < k; i++) index[i] = order[i], logit[i] = logits[order[i]];
}

}  // namespace selfspec
