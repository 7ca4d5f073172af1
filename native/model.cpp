#include "model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "pass.h"

namespace selfspec {

Model::Model(const Sizes& z, std::vector<float> inverse_frequencies, const Kernels& set, int threads)
    : sizes(z),
      heads{z.heads / z.kv_heads, z.width, round_up(z.width, 8), 1.0f / std::sqrt(static_cast<float>(z.width))},
      frequencies(std::move(inverse_frequencies)), kernels(set), layers(z.layers), teams_(threads) {}

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

void carve(Carver& c, Scratch& s, const Sizes& z, const Heads& h, std::size_t rows, int members) {
  const std::size_t inputs = round_up(std::max({z.hidden, z.intermediate, z.query()}), BLOCK);
  c.acts(s.shared, rows, inputs);
  s.own.resize(members), s.row.resize(members), s.attend.resize(members);
  for (int i = 0; i < members; i++) {
    c.acts(s.own[i], 1, inputs);
    s.row[i] = c.take<float>(inputs + h.padded);
    s.attend[i] = c.take<float>(attend_scratch(h));
  }
  s.qkv = c.take<float>(rows * (z.query() + 2 * z.key()));
  s.queries = c.take<float>(rows * z.heads * h.padded);
  s.hidden = c.take<float>(rows * round_up(z.intermediate, BLOCK));
  s.cosines = c.take<float>(rows * (z.width / 2)), s.sines = c.take<float>(rows * (z.width / 2));
}

}  // namespace

void Model::reserve(int rows, std::size_t partial_floats, std::size_t bests) {
  Scratch& s = scratch_;
  if (s.rows < static_cast<std::size_t>(rows)) {
    const std::size_t wanted = std::max<std::size_t>(rows, 16);
    Carver count{nullptr}, real{nullptr};
    carve(count, s, sizes, heads, wanted, threads());
    s.rows = 0;
    s.memory = Memory(count.used);
    real.base = s.memory.as<char>();
    carve(real, s, sizes, heads, wanted, threads());
    s.rows = wanted;
  }
  if (s.partial_floats < partial_floats) {
    s.partial_floats = 0;
    s.partial_memory = Memory(partial_floats * sizeof(float));
    s.partials = s.partial_memory.as<float>(), s.partial_floats = partial_floats;
  }
  if (s.bests < bests) {
    s.bests = 0;
    s.best_memory = Memory(bests * sizeof(Best));
    s.best = s.best_memory.as<Best>(), s.bests = bests;
  }
}

void Model::run(float* x, const std::vector<Step>& steps, const Rows& rows, Cache& cache) {
  teams_.run([&](Team& team) { Pass(*this, team, rows.count, x).layers(steps, rows, cache); });
}

void Model::logits(const float* x, int rows, const Matrix& w, float* out) {
  teams_.run([&](Team& team) {
    // the head only reads x
    Pass(*this, team, rows, const_cast<float*>(x))
        .head({{{w, nullptr, out, static_cast<std::size_t>(w.n), nullptr}}, 1, Finish::store});
  });
}

void Model::best(const float* x, int rows, const Matrix& w, std::int64_t* index, float* logit, float* lse) {
  teams_.run([&](Team& team) {
    const int groups = w.groups();
    reserve(rows, 0, static_cast<std::size_t>(rows) * groups);
    Pass(*this, team, rows, const_cast<float*>(x))
        .head({{{w, nullptr, nullptr, 0, scratch_.best}}, 1, Finish::best});
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
