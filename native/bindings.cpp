// The Python module selfspec._native; src/selfspec/_native.pyi describes it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "model.h"
#include "pack.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace selfspec;

namespace {

template <class T, class... Shape> using Array = nb::ndarray<T, nb::numpy, nb::device::cpu, nb::c_contig, Shape...>;
using Bytes = Array<const std::uint8_t, nb::ndim<1>>;
using Vector = Array<const float, nb::ndim<1>>;
using Grid = Array<float, nb::ndim<2>>;
using Integers = Array<const std::int64_t, nb::ndim<1>>;

void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

Kind kind_named(const std::string& name) {
  static const char* names[] = {"fp32", "bf16", "fp16", "int8", "int4"};
  for (int i = 0; i < 5; i++)
    if (name == names[i]) return static_cast<Kind>(i);
  throw std::invalid_argument("no kind " + name);
}

Blocks blocks_named(const std::string& name) {
  if (name == "Q8_0") return Blocks::q8_0;
  if (name == "Q4_0") return Blocks::q4_0;
  if (name == "Q4_1") return Blocks::q4_1;
  throw std::invalid_argument("no block type " + name);
}

const Kernels& kernels_named(const std::string& name) {
  if (name == "portable") return portable_kernels();
#ifdef SELFSPEC_AVX2
  if (name == "avx2" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    return avx2_kernels();
#endif
  throw std::invalid_argument("no kernels " + name + " on this processor");
}

// The kernel sets that this processor runs, the fastest first.
std::vector<std::string> kernel_sets() {
  std::vector<std::string> sets;
  for (const char* name : {"avx2", "portable"}) try {
      kernels_named(name);
      sets.emplace_back(name);
    } catch (const std::invalid_argument&) {
    }
  return sets;
}

// A packed matrix, with a hold on the array that has its bytes.
struct Held {
  Matrix w;
  Bytes data;
  Held(const std::string& kind, int rows, int columns, Bytes bytes)
      : w{kind_named(kind), rows, columns, bytes.data()}, data(bytes) {
    require(rows > 0 && columns > 0, "a matrix has rows and columns");
    require(reinterpret_cast<std::uintptr_t>(bytes.data()) % 4 == 0, "packed bytes begin at a multiple of 4");
    require(bytes.size() == w.bytes(), "these bytes are no packed matrix of this kind and shape");
  }
};

void pack_floats(const std::string& kind, Array<const float, nb::ndim<2>> weights, Array<std::uint8_t, nb::ndim<1>> out) {
  const Matrix w{kind_named(kind), static_cast<int>(weights.shape(0)), static_cast<int>(weights.shape(1)), nullptr};
  require(out.size() == w.bytes(), "out has the wrong size");
  const nb::gil_scoped_release release;
  pack(w.kind, weights.data(), w.n, w.k, out.data());
}

void pack_gguf(const std::string& type, Array<const std::uint8_t, nb::ndim<2>> rows, Array<std::uint8_t, nb::ndim<1>> out) {
  const Blocks blocks = blocks_named(type);
  const std::size_t size = gguf_block_bytes(blocks);
  require(rows.shape(1) % size == 0, "a row is whole blocks");
  const Matrix w{kind_of(blocks), static_cast<int>(rows.shape(0)), static_cast<int>(rows.shape(1) / size * BLOCK), nullptr};
  require(out.size() == w.bytes(), "out has the wrong size");
  const nb::gil_scoped_release release;
  pack_blocks(blocks, rows.data(), w.n, w.k, out.data());
}

// Zeroed memory in huge pages where the system has them: weights are one long stream.
nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>> allocate(std::size_t size) {
  auto* memory = new Memory(size);
  const nb::capsule owner(memory, [](void* p) noexcept { delete static_cast<Memory*>(p); });
  return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(memory->as<std::uint8_t>(), {size}, owner);
}

// What the processor has of what the kernels use or might use.
std::vector<std::string> features() {
  std::vector<std::string> found;
#ifdef SELFSPEC_AVX2
  const std::pair<const char*, int> all[] = {{"avx2", __builtin_cpu_supports("avx2")},
                                             {"fma", __builtin_cpu_supports("fma")},
                                             {"f16c", __builtin_cpu_supports("f16c")},
                                             {"avx512f", __builtin_cpu_supports("avx512f")},
                                             {"avx512vnni", __builtin_cpu_supports("avx512vnni")}};
  for (const auto& [name, there] : all)
    if (there) found.emplace_back(name);
#endif
  return found;
}

void largest_rows(Array<const float, nb::ndim<2>> logits, Array<std::int64_t, nb::ndim<2>> index, Grid logit) {
  const std::size_t rows = logits.shape(0), n = logits.shape(1), k = index.shape(1);
  require(index.shape(0) == rows && logit.shape(0) == rows && logit.shape(1) == k && k <= n, "out has the wrong shape");
  const nb::gil_scoped_release release;
  for (std::size_t r = 0; r < rows; r++)
    largest(logits.data() + r * n, static_cast<int>(n), static_cast<int>(k), index.data() + r * k, logit.data() + r * k);
}

void check_rows(const Held& m, Integers rows) {
  for (std::size_t i = 0; i < rows.size(); i++)
    if (rows.data()[i] < 0 || rows.data()[i] >= m.w.n) throw nb::index_error("no such row");
}

void unpack_rows(const Held& m, Integers rows, Grid out) {
  check_rows(m, rows);
  require(out.shape(0) == rows.size() && out.shape(1) == static_cast<std::size_t>(m.w.k), "out has the wrong shape");
  for (std::size_t i = 0; i < rows.size(); i++)
    unpack_row(m.w, static_cast<int>(rows.data()[i]), out.data() + i * m.w.k);
}

void take_rows(const Held& m, Integers rows, Array<std::uint8_t, nb::ndim<1>> out) {
  check_rows(m, rows);
  const Matrix to{m.w.kind, static_cast<int>(rows.size()), m.w.k, nullptr};
  require(out.size() == to.bytes(), "out has the wrong size");
  std::memset(out.data(), 0, to.bytes());
  for (std::size_t i = 0; i < rows.size(); i++) copy_row(m.w, static_cast<int>(rows.data()[i]), out.data(), static_cast<int>(i));
}

std::vector<float> padded(const Vector& v, int step) {
  std::vector<float> out(round_up(static_cast<int>(v.size()), step), 0.0f);
  std::copy(v.data(), v.data() + v.size(), out.begin());
  return out;
}

// sizes: layers, hidden, intermediate, heads, KV heads, head width, vocabulary
Sizes sizes_of(const std::vector<int>& s, float eps) {
  require(s.size() == 7 && *std::min_element(s.begin(), s.end()) > 0, "seven positive sizes");
  require(s[3] % s[4] == 0 && s[5] % 2 == 0, "query heads in whole groups, and heads of even width");
  return {s[0], s[1], s[2], s[3], s[4], s[5], s[6], eps};
}

struct PyModel {
  Model model;
  std::vector<Bytes> kept;

  PyModel(const std::vector<int>& sizes, float eps, Vector frequencies, const std::string& kernels, int threads)
      : model(sizes_of(sizes, eps), {frequencies.data(), frequencies.data() + frequencies.size()},
              kernels_named(kernels), threads) {
    require(threads >= 1, "at least one thread");
    require(frequencies.size() == static_cast<std::size_t>(model.sizes.width / 2), "a frequency for each pair");
  }

  Layer& layer(int i) {
    if (i < 0 || i >= model.sizes.layers) throw nb::index_error("no such layer");
    return model.layers[i];
  }

  Linear& linear(int i, const std::string& role) {
    if (role == "head") return model.head;
    Layer& l = layer(i);
    const std::pair<const char*, Linear*> all[] = {{"q", &l.q}, {"k", &l.k}, {"v", &l.v}, {"o", &l.o}, {"gate", &l.gate}, {"up", &l.up}, {"down", &l.down}};
    for (const auto& [name, found] : all)
      if (role == name) return *found;
    throw std::invalid_argument("no role " + role);
  }

  std::pair<int, int> shape(const std::string& role) const {
    const Sizes& z = model.sizes;
    if (role == "head") return {z.vocabulary, z.hidden};
    if (role == "q") return {z.query(), z.hidden};
    if (role == "k" || role == "v") return {z.key(), z.hidden};
    if (role == "o") return {z.hidden, z.query()};
    if (role == "down") return {z.hidden, z.intermediate};
    return {z.intermediate, z.hidden};
  }

  void set_linear(int i, const std::string& role, const Held& m, nb::object bias) {
    Linear& to = linear(i, role);
    require(std::pair(m.w.n, m.w.k) == shape(role), role + " has another shape");
    to.w = m.w;
    kept.push_back(m.data);
    if (bias.is_none()) return;
    const Vector values = nb::cast<Vector>(bias);
    require(static_cast<int>(values.size()) == m.w.n, "a bias for each output");
    to.bias = padded(values, GROUP);
  }

  void set_norm(int i, const std::string& role, Vector weight) {
    require(static_cast<int>(weight.size()) == model.sizes.hidden, "a weight for each number");
    std::vector<float>& to = role == "final" ? model.final_norm : role == "attention" ? layer(i).attention_norm : layer(i).mlp_norm;
    to = padded(weight, BLOCK);
  }

  void check_complete(const std::vector<Step>& steps) const {
    for (const Step& step : steps) {
      const Layer& l = model.layers[step.layer];
      const bool all = step.part == Sub::attention ? l.q.w.data && l.k.w.data && l.v.w.data && l.o.w.data && !l.attention_norm.empty()
                                                   : l.gate.w.data && l.up.w.data && l.down.w.data && !l.mlp_norm.empty();
      require(all, "a layer lacks weights");
    }
  }

  // steps: 2 * layer, + 1 for its MLP; taps: for each step its place in tapped, or -1
  std::vector<Step> steps_of(const Integers& steps, const Integers& taps, const Array<float, nb::ndim<3>>& tapped) {
    require(taps.size() == steps.size(), "a tap or -1 for each step");
    std::vector<Step> out;
    for (std::size_t i = 0; i < steps.size(); i++) {
      const std::int64_t at = steps.data()[i], tap = taps.data()[i];
      require(at >= 0 && at < 2 * model.sizes.layers && tap < static_cast<std::int64_t>(tapped.shape(0)), "no such step or tap");
      float* copy = tap < 0 ? nullptr : tapped.data() + tap * tapped.shape(1) * tapped.shape(2);
      out.push_back({static_cast<int>(at / 2), at % 2 ? Sub::mlp : Sub::attention, copy});
    }
    check_complete(out);
    return out;
  }

  Rows rows_of(const Integers& slots, const Integers& positions, const nb::object& lineage, const Cache& cache, Array<const std::int64_t, nb::ndim<2>>& lines) {
    Rows rows{static_cast<int>(slots.size()), 0, slots.data(), positions.data(), nullptr};
    require(positions.size() == slots.size(), "a position for each row");
    if (!lineage.is_none()) {
      lines = nb::cast<Array<const std::int64_t, nb::ndim<2>>>(lineage);
      require(lines.shape(0) == slots.size() && lines.shape(1) > 0, "a lineage for each row");
      rows.depth = static_cast<int>(lines.shape(1)), rows.lineage = lines.data();
    }
    for (int r = 0; r < rows.count; r++) {
      require(rows.slots[r] >= 0 && rows.slots[r] < cache.slots() && rows.positions[r] >= 0 && rows.positions[r] < cache.length(), "a row outside of the cache");
      for (int i = 0; i < rows.depth; i++) {
        const std::int64_t cell = rows.lineage[static_cast<std::int64_t>(r) * rows.depth + i];
        require(cell >= 0 && cell < cache.length(), "a cell outside of the cache");
      }
      if (rows.lineage) {
        const std::int64_t below = rows.positions[r] - rows.lineage[static_cast<std::int64_t>(r) * rows.depth];
        require(below >= 0 && below < rows.depth, "a lineage that does not reach its position");
      }
    }
    return rows;
  }

  void check_hidden(const Array<float, nb::ndim<2>>& x) const {
    require(static_cast<int>(x.shape(1)) == model.sizes.hidden && x.shape(0) > 0, "hidden states have another width");
  }

  void run(Grid x, std::tuple<Integers, Integers, Array<float, nb::ndim<3>>> plan,
           std::tuple<Integers, Integers, nb::object> where, Cache& cache) {
    check_hidden(x);
    const auto& [steps, taps, tapped] = plan;
    const auto& [slots, positions, lineage] = where;
    require(slots.size() == x.shape(0), "a row for each hidden state");
    require(tapped.shape(0) == 0 || (tapped.shape(1) == x.shape(0) && tapped.shape(2) == x.shape(1)), "taps have another shape");
    const std::vector<Step> todo = steps_of(steps, taps, tapped);
    Array<const std::int64_t, nb::ndim<2>> lines;
    const Rows rows = rows_of(slots, positions, lineage, cache, lines);
    const nb::gil_scoped_release release;
    model.run(x.data(), todo, rows, cache);
  }

  const Matrix& head_or(const nb::object& other) const {
    const Matrix& w = other.is_none() ? model.head.w : nb::cast<const Held&>(other).w;
    require(w.data && w.k == model.sizes.hidden && !model.final_norm.empty(), "no head of this width");
    return w;
  }

  void logits(Grid x, Grid out, const nb::object& head) {
    check_hidden(x);
    const Matrix& w = head_or(head);
    require(out.shape(0) == x.shape(0) && out.shape(1) == static_cast<std::size_t>(w.n), "out has the wrong shape");
    const nb::gil_scoped_release release;
    model.logits(x.data(), static_cast<int>(x.shape(0)), w, out.data());
  }

  void best(Grid x, Array<std::int64_t, nb::ndim<1>> index, Array<float, nb::ndim<1>> logit, Array<float, nb::ndim<1>> lse, const nb::object& head) {
    check_hidden(x);
    const Matrix& w = head_or(head);
    require(index.size() == x.shape(0) && logit.size() == x.shape(0) && lse.size() == x.shape(0), "out has the wrong shape");
    const nb::gil_scoped_release release;
    model.best(x.data(), static_cast<int>(x.shape(0)), w, index.data(), logit.data(), lse.data());
  }

  void sweep(const std::vector<Bytes>& arrays) {
    std::vector<std::pair<const std::uint8_t*, std::size_t>> spans;
    for (const Bytes& bytes : arrays) spans.emplace_back(bytes.data(), bytes.size());
    const nb::gil_scoped_release release;
    model.sweep(spans);
  }

  // Seconds since the last call by operator; from the first call on they are counted.
  std::vector<double> seconds() {
    const std::vector<double> so_far(model.seconds.begin() + 1, model.seconds.end());
    model.seconds.fill(0);
    model.timed = true;
    return so_far;
  }

  void move_cells(Cache& cache, const Integers& slots, const Integers& from, const Integers& to) {
    require(slots.size() == from.size() && slots.size() == to.size(), "as many slots as cells");
    const auto inside = [&](std::int64_t cell) { return cell >= 0 && cell < cache.length(); };
    for (std::size_t i = 0; i < slots.size(); i++) {
      const std::int64_t slot = slots.data()[i], a = from.data()[i], b = to.data()[i];
      require(slot >= 0 && slot < cache.slots() && inside(a) && inside(b), "a cell outside of the cache");
      if (a != b) cache.move(static_cast<int>(slot), a, b);
    }
  }
};

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // an engine may live as long as the interpreter
  m.def("features", &features);
  m.def("kernel_sets", &kernel_sets);
  m.def("allocate", &allocate, "size"_a);
  m.def("packed_bytes", [](const std::string& kind, int rows, int columns) {
    return Matrix{kind_named(kind), rows, columns, nullptr}.bytes();
  }, "kind"_a, "rows"_a, "columns"_a);
  m.def("pack", &pack_floats, "kind"_a, "weights"_a.noconvert(), "out"_a.noconvert());
  m.def("pack_blocks", &pack_gguf, "blocks"_a, "rows"_a.noconvert(), "out"_a.noconvert());
  m.def("unpack_rows", &unpack_rows, "matrix"_a, "rows"_a.noconvert(), "out"_a.noconvert());
  m.def("take_rows", &take_rows, "matrix"_a, "rows"_a.noconvert(), "out"_a.noconvert());
  m.def("largest", &largest_rows, "logits"_a.noconvert(), "index"_a.noconvert(), "logit"_a.noconvert());
  nb::class_<Held>(m, "Matrix")
      .def(nb::init<const std::string&, int, int, Bytes>(), "kind"_a, "rows"_a, "columns"_a, "data"_a.noconvert());
  nb::class_<Cache>(m, "Cache")
      .def(nb::init<int, int, int, int, int, bool>(), "layers"_a, "slots"_a, "length"_a, "kv_heads"_a, "width"_a, "half"_a)
      .def_prop_ro("nbytes", &Cache::bytes)
      .def("copy_from", &Cache::copy_from, "other"_a);
  nb::class_<PyModel>(m, "Model")
      .def(nb::init<const std::vector<int>&, float, Vector, const std::string&, int>(), "sizes"_a, "eps"_a, "frequencies"_a, "kernels"_a, "threads"_a)
      .def("set_linear", &PyModel::set_linear, "layer"_a, "role"_a, "matrix"_a, "bias"_a.none())
      .def("set_norm", &PyModel::set_norm, "layer"_a, "role"_a, "weight"_a.noconvert())
      .def("run", &PyModel::run, "hidden"_a.noconvert(), "plan"_a, "rows"_a, "cache"_a)
      .def("logits", &PyModel::logits, "hidden"_a.noconvert(), "out"_a.noconvert(), "head"_a.none())
      .def("best", &PyModel::best, "hidden"_a.noconvert(), "index"_a.noconvert(), "logit"_a.noconvert(), "lse"_a.noconvert(), "head"_a.none())
      .def("sweep", &PyModel::sweep, "arrays"_a)
      .def("seconds", &PyModel::seconds)
      .def("move", &PyModel::move_cells, "cache"_a, "slots"_a.noconvert(), "from_cells"_a.noconvert(), "to_cells"_a.noconvert());
}
