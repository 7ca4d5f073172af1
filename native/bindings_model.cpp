// Model and cache as Python sees them, checked here: what is inside trusts what it is given.
#include "bindings.h"

#include <algorithm>
#include <cmath>

#include "model.h"

namespace selfspec {
namespace {

constexpr int MOST = 1 << 24;  // of any size: products of two fit into 64 bits many times

const std::pair<const char*, Linear Layer::*> LINEARS[] = {
    {"q", &Layer::q}, {"k", &Layer::k}, {"v", &Layer::v}, {"o", &Layer::o}, {"gate", &Layer::gate}, {"up", &Layer::up},
    {"down", &Layer::down}, {"router", &Layer::router}, {"shared_gate", &Layer::shared_gate},
    {"shared_up", &Layer::shared_up}, {"shared_down", &Layer::shared_down}, {"shared_router", &Layer::shared_router}};
const std::pair<const char*, Linear Expert::*> EXPERT_LINEARS[] = {
    {"gate", &Expert::gate}, {"up", &Expert::up}, {"down", &Expert::down}};
const std::pair<const char*, Norm Layer::*> NORMS[] = {
    {"attention", &Layer::attention_norm}, {"mlp", &Layer::mlp_norm}, {"attention_after", &Layer::attention_after},
    {"mlp_after", &Layer::mlp_after}, {"q", &Layer::q_norm}, {"k", &Layer::k_norm}, {"beside", &Layer::beside_norm}};

template <class M, std::size_t N> M member(const std::string& role, const std::pair<const char*, M> (&all)[N]) {
  for (const auto& [name, found] : all)
    if (role == name) return found;
  throw std::invalid_argument("no role " + role);
}

std::vector<float> padded(const Vector& v, int step) {
  std::vector<float> out(round_up(static_cast<int>(v.size()), step), 0.0f);
  std::copy(v.data(), v.data() + v.size(), out.begin());
  return out;
}

// sizes: layers, hidden, intermediate, heads, KV heads, head width, vocabulary
Sizes sizes_of(const std::vector<int>& s, float eps) {
  require(s.size() == 7 && *std::min_element(s.begin(), s.end()) > 0 && *std::max_element(s.begin(), s.end()) <= MOST, "seven positive sizes");
  require(s[3] % s[4] == 0 && std::int64_t{s[3]} * s[5] <= MOST, "query heads in whole groups");
  return {s[0], s[1], s[2], s[3], s[4], s[5], s[6], eps};
}

using PyRope = std::tuple<Vector, bool, float>;  // frequencies, whether neighbours turn, the factor of cosines and sines
std::vector<Rope> ropes_of(const std::vector<PyRope>& given, const Sizes& sizes) {
  std::vector<Rope> ropes;
  for (const auto& [frequencies, interleaved, factor] : given) {
    require(2 * frequencies.size() <= static_cast<std::size_t>(sizes.width), "more turned numbers than a head has");
    ropes.push_back({{frequencies.data(), frequencies.data() + frequencies.size()}, interleaved, factor});
  }
  return ropes;
}

Element element_named(const std::string& name) {
  return static_cast<Element>(named(name, {"float16", "bfloat16", "float32", "int8"}, "precision"));
}

void set_fact(Facts& f, const std::string& name, nb::handle value) {
  const auto number = [&] { return nb::cast<float>(value); };
  const auto size = [&] {
    const auto n = nb::cast<std::int64_t>(value);
    require(n >= 0 && n <= MOST, name + " is too large");
    return static_cast<int>(n);
  };
  if (name == "rope") f.rope = nb::cast<int>(value);
  else if (name == "window") f.window = static_cast<int>(std::min<std::int64_t>(nb::cast<std::int64_t>(value), 1 << 30));
  else if (name == "scale") f.scale = number();
  else if (name == "cap") f.cap = number();
  else if (name == "centred") f.centred = nb::cast<bool>(value);
  else if (name == "norm_heads") f.norm_heads = nb::cast<bool>(value);
  else if (name == "parallel") f.parallel = nb::cast<bool>(value);
  else if (name == "beside") f.beside = nb::cast<bool>(value);
  else if (name == "residual") f.residual = number();
  else if (name == "activation")
    f.activation.act = static_cast<Act>(named(nb::cast<std::string>(value), {"silu", "gelu", "gelu_tanh", "relu", "clipped"}, "activation"));
  else if (name == "limit") f.activation.limit = number();
  else if (name == "sharpness") f.activation.sharpness = number();
  else if (name == "experts") f.experts = size();
  else if (name == "per_token") f.per_token = size();
  else if (name == "expert_width") f.expert_width = size();
  else if (name == "shared_width") f.shared_width = size();
  else if (name == "weighting")
    f.weighting = static_cast<Weighting>(named(nb::cast<std::string>(value), {"all", "renormed", "chosen"}, "weighting"));
  else throw std::invalid_argument("no fact " + name);
}

struct PyModel {
  Model model;
  std::vector<Bytes> kept;
  std::vector<bool> complete;  // of each step: whether it has been found to have all its weights

  PyModel(const std::vector<int>& sizes, float eps, const std::vector<PyRope>& ropes, const std::string& kernels, int threads)
      : model(sizes_of(sizes, eps), ropes_of(ropes, sizes_of(sizes, eps)), kernels_named(kernels), threads),
        complete(2 * model.sizes.layers) {
    require(threads >= 1, "at least one thread");
  }

  Layer& layer(int i) {
    if (i < 0 || i >= model.sizes.layers) throw nb::index_error("no such layer");
    complete[2 * i] = complete[2 * i + 1] = false;
    return model.layers[i];
  }

  void set_facts(int i, const nb::dict& given) {
    Layer& l = layer(i);
    Facts f;
    f.scale = l.heads.scale;
    for (const auto& [name, value] : given) set_fact(f, nb::cast<std::string>(name), value);
    require(f.rope >= -1 && f.rope < static_cast<int>(model.ropes.size()), "no such rotary embedding");
    require(f.window >= 0 && f.per_token <= f.experts && (!f.experts || (f.per_token && f.expert_width)), "a window, or experts, that cannot be");
    require(f.activation.act != Act::clipped || f.experts, "only experts have clipped activations");
    l.facts = f, l.heads.scale = f.scale, l.heads.cap = f.cap;
    l.experts.resize(f.experts);
  }

  std::pair<int, int> shape(const std::string& role, const Facts& f) const {
    const Sizes& z = model.sizes;
    if (role == "head") return {z.vocabulary, z.hidden};
    if (role == "q") return {z.query(), z.reads(f.beside)};
    if (role == "k" || role == "v") return {z.key(), z.reads(f.beside)};
    if (role == "o") return {z.hidden, z.query()};
    if (role == "router") return {f.experts, z.hidden};
    if (role == "shared_router") return {1, z.hidden};
    if (role == "shared_down") return {z.hidden, f.shared_width};
    if (role.starts_with("shared")) return {f.shared_width, z.hidden};
    if (role == "down") return {z.hidden, z.intermediate};
    return {z.intermediate, z.hidden};
  }

  void set(Linear& to, const std::string& role, std::pair<int, int> wanted, const Held& m, const nb::object& bias) {
    require(std::pair(m.w.n, m.w.k) == wanted, role + " has another shape");
    to.bias.clear();
    if (!bias.is_none()) {
      const Vector values = nb::cast<Vector>(bias);
      require(static_cast<int>(values.size()) == m.w.n, "a bias for each output");
      to.bias = padded(values, GROUP);
    }
    to.w = m.w;
    kept.push_back(m.data);
  }

  void set_linear(int i, const std::string& role, const Held& m, nb::object bias) {
    if (role == "head") return set(model.head, role, shape(role, {}), m, bias);
    if (role == "transform") return set(model.transform, role, {model.sizes.hidden, m.w.k}, m, bias);
    Layer& l = layer(i);
    set(l.*member(role, LINEARS), role, shape(role, l.facts), m, bias);
  }

  void set_expert(int i, int e, const std::string& role, const Held& m, nb::object bias) {
    Layer& l = layer(i);
    if (e < 0 || e >= l.facts.experts) throw nb::index_error("no such expert");
    const int d = model.sizes.hidden, width = l.facts.expert_width;
    set(l.experts[e].*member(role, EXPERT_LINEARS), role, role == "down" ? std::pair(d, width) : std::pair(width, d), m, bias);
  }

  void set_norm(int i, const std::string& role, Vector weight, nb::object bias) {
    const Sizes& z = model.sizes;
    const bool heads = role == "q" || role == "k";
    Norm& to = role == "final" ? model.final_norm : layer(i).*member(role, NORMS);
    const int d = !heads ? z.hidden : layer(i).facts.norm_heads ? z.width : role == "q" ? z.query() : z.key();
    require(static_cast<int>(weight.size()) == d, "a weight for each number");
    Norm made{padded(weight, BLOCK), {}};
    if (!bias.is_none()) {
      const Vector values = nb::cast<Vector>(bias);
      require(static_cast<int>(values.size()) == d, "a bias for each number");
      made.bias = padded(values, BLOCK);
    }
    to = std::move(made);
  }

  void set_sinks(int i, Vector sinks) {
    require(static_cast<int>(sinks.size()) == model.sizes.heads, "a sink for each head");
    layer(i).sinks.assign(sinks.data(), sinks.data() + sinks.size());
  }

  void set_logits(float scale, float cap, bool centred) {
    model.logit_facts = {scale, cap}, model.final_centred = centred;
  }

  static bool has_experts(Layer& l) {
    if (!l.router.there()) return false;
    if (l.facts.shared_width && !(l.shared_gate.there() && l.shared_up.there() && l.shared_down.there() && l.shared_router.there())) return false;
    l.expert_formats = l.inner_formats = 0;
    for (const Expert& e : l.experts) {
      if (!(e.gate.there() && e.up.there() && e.down.there())) return false;
      l.expert_formats |= format_of(e.gate.w.kind) | format_of(e.up.w.kind);
      l.inner_formats |= format_of(e.down.w.kind);
    }
    return true;
  }

  void check_complete(const Step& step) {
    const std::size_t at = 2 * step.layer + (step.part == Sub::mlp);
    if (complete[at]) return;
    Layer& l = model.layers[step.layer];
    if (step.part == Sub::attention)
      require(l.q.there() && l.k.there() && l.v.there() && l.o.there() && l.q_norm.there() == l.k_norm.there() &&
                  l.q.w.k == model.sizes.reads(l.facts.beside) && l.q.w.k == l.k.w.k && l.q.w.k == l.v.w.k,
              "a layer lacks weights");
    else
      require(l.facts.experts ? has_experts(l) : l.up.there() && l.down.there(), "a layer lacks weights");
    complete[at] = true;
  }

  // steps: 2 * layer, + 1 for its MLP; taps: for each step its place in tapped, or -1
  std::vector<Step> steps_of(const Integers& steps, const Integers& taps, const Array<float, nb::ndim<3>>& tapped, int rows, int experts) {
    require(taps.size() == steps.size(), "a tap or -1 for each step");
    std::vector<Step> out;
    for (std::size_t i = 0; i < steps.size(); i++) {
      const std::int64_t at = steps.data()[i], tap = taps.data()[i];
      require(at >= 0 && at < 2 * model.sizes.layers && tap < static_cast<std::int64_t>(tapped.shape(0)), "no such step or tap");
      float* copy = tap < 0 ? nullptr : tapped.data() + tap * tapped.shape(1) * tapped.shape(2);
      out.push_back({static_cast<int>(at / 2), at % 2 ? Sub::mlp : Sub::attention, copy});
      check_complete(out.back());
      const int count = model.layers[at / 2].facts.experts;
      require(experts >= 0 && (!(at % 2) || !count || experts <= count), "more experts than a layer has");
      require(std::int64_t{rows} * (experts ? experts : count) <= 1 << 30, "too many rows for so many experts");
    }
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
    std::vector<std::int64_t> cells;  // members of the team would write one cell side by side
    for (int r = 0; r < rows.count; r++) cells.push_back(rows.slots[r] * cache.length() + rows.cell(r));
    std::sort(cells.begin(), cells.end());
    require(std::adjacent_find(cells.begin(), cells.end()) == cells.end(), "a cell of its own for each row");
    return rows;
  }

  void check_hidden(const Array<float, nb::ndim<2>>& x) const {
    require(static_cast<int>(x.shape(1)) == model.sizes.hidden && x.shape(0) > 0 && x.shape(0) <= MOST, "hidden states have another width");
  }

  void check_cache(const Cache& cache) const {
    const Sizes& z = model.sizes;
    require(cache.layers() == z.layers && cache.kv_heads() == z.kv_heads && cache.width() == z.width, "a cache of another model");
  }

  void run(Grid x, std::tuple<Integers, Integers, Array<float, nb::ndim<3>>, int> plan,
           std::tuple<Integers, Integers, nb::object> where, Cache& cache, const nb::object& second) {
    check_hidden(x);
    check_cache(cache);
    const auto& [steps, taps, tapped, experts] = plan;
    const auto& [slots, positions, lineage] = where;
    require(slots.size() == x.shape(0), "a row for each hidden state");
    require(tapped.shape(0) == 0 || (tapped.shape(1) == x.shape(0) && tapped.shape(2) == x.shape(1)), "taps have another shape");
    const std::vector<Step> todo = steps_of(steps, taps, tapped, static_cast<int>(x.shape(0)), experts);
    Array<const std::int64_t, nb::ndim<2>> lines;
    const Rows rows = rows_of(slots, positions, lineage, cache, lines);
    const int each = experts;
    Array<const float, nb::ndim<2>> vectors;
    if (!second.is_none()) {
      vectors = nb::cast<Array<const float, nb::ndim<2>>>(second);
      require(vectors.shape(0) == x.shape(0) && vectors.shape(1) == x.shape(1), "a second vector for each row");
    }
    for (const Step& step : todo) require(!second.is_none() || step.part == Sub::mlp || !model.layers[step.layer].facts.beside, "a layer reads a second vector");
    const float* beside = second.is_none() ? nullptr : vectors.data();
    const nb::gil_scoped_release release;
    model.run(x.data(), todo, rows, cache, each, beside);
  }

  void transformed(const Array<const float, nb::ndim<2>>& x, Grid out, bool adds) {
    check_hidden(out);
    require(model.transform.there() && x.shape(0) == out.shape(0) && static_cast<int>(x.shape(1)) == model.transform.w.k, "no transform of these rows");
    const nb::gil_scoped_release release;
    model.transformed(x.data(), static_cast<int>(x.shape(0)), out.data(), adds);
  }

  const Matrix& head_or(const nb::object& other) const {
    const Matrix& w = other.is_none() ? model.head.w : nb::cast<const Held&>(other).w;
    require(w.data && w.k == model.sizes.hidden && model.final_norm.there(), "no head of this width");
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
};

void move_cells(Cache& cache, const Integers& slots, const Integers& from, const Integers& to) {
  require(slots.size() == from.size() && slots.size() == to.size(), "as many slots as cells");
  const auto inside = [&](std::int64_t cell) { return cell >= 0 && cell < cache.length(); };
  for (std::size_t i = 0; i < slots.size(); i++) {
    const std::int64_t slot = slots.data()[i], a = from.data()[i], b = to.data()[i];
    require(slot >= 0 && slot < cache.slots() && inside(a) && inside(b), "a cell outside of the cache");
    if (a != b) cache.move(static_cast<int>(slot), a, b);
  }
}

void copy_cache(Cache& to, const Cache& from) {
  bool fits = to.layers() == from.layers() && to.slots() == from.slots() && to.kv_heads() == from.kv_heads() &&
              to.width() == from.width() && to.element() == from.element();
  for (int i = 0; fits && i < to.layers(); i++) fits = from.places(i) <= to.places(i);
  require(fits, "a cache of another model, or a longer one");
  const nb::gil_scoped_release release;  // gigabytes take seconds
  to.copy_from(from);
}

Cache* new_cache(const std::vector<int>& rings, int slots, int length, int kv_heads, int width, const std::string& element) {
  require(!rings.empty() && *std::min_element(rings.begin(), rings.end()) >= 0, "a size for each layer");
  require(slots > 0 && length > 0 && kv_heads > 0 && width > 0 && kv_heads <= MOST && width <= MOST, "positive sizes");
  const Element kind = element_named(element);
  const nb::gil_scoped_release release;
  return new Cache(rings, slots, length, kv_heads, width, kind);
}

}  // namespace

void bind_model(nb::module_& m) {
  nb::class_<Cache>(m, "Cache")
      .def(nb::new_(&new_cache), "rings"_a, "slots"_a, "length"_a, "kv_heads"_a, "width"_a, "element"_a)
      .def_prop_ro("nbytes", &Cache::bytes)
      .def_prop_ro("smallest_ring", &Cache::smallest_ring)
      .def("copy_from", &copy_cache, "other"_a)
      .def("move", &move_cells, "slots"_a.noconvert(), "from_cells"_a.noconvert(), "to_cells"_a.noconvert());
  nb::class_<PyModel>(m, "Model")
      .def(nb::init<const std::vector<int>&, float, const std::vector<PyRope>&, const std::string&, int>(), "sizes"_a, "eps"_a, "ropes"_a, "kernels"_a, "threads"_a)
      .def("set_facts", &PyModel::set_facts, "layer"_a, "facts"_a)
      .def("set_linear", &PyModel::set_linear, "layer"_a, "role"_a, "matrix"_a, "bias"_a.none())
      .def("set_expert", &PyModel::set_expert, "layer"_a, "expert"_a, "role"_a, "matrix"_a, "bias"_a.none())
      .def("set_norm", &PyModel::set_norm, "layer"_a, "role"_a, "weight"_a.noconvert(), "bias"_a.none())
      .def("set_sinks", &PyModel::set_sinks, "layer"_a, "sinks"_a.noconvert())
      .def("set_logits", &PyModel::set_logits, "scale"_a, "cap"_a, "centred"_a)
      .def("run", &PyModel::run, "hidden"_a.noconvert(), "plan"_a, "rows"_a, "cache"_a, "beside"_a.none() = nb::none())
      .def("transformed", &PyModel::transformed, "hidden"_a.noconvert(), "out"_a.noconvert(), "adds"_a)
      .def("logits", &PyModel::logits, "hidden"_a.noconvert(), "out"_a.noconvert(), "head"_a.none())
      .def("best", &PyModel::best, "hidden"_a.noconvert(), "index"_a.noconvert(), "logit"_a.noconvert(), "lse"_a.noconvert(), "head"_a.none())
      .def("sweep", &PyModel::sweep, "arrays"_a)
      .def_prop_ro("expert_reads", [](const PyModel& m) { return m.model.expert_reads; })
      .def("seconds", &PyModel::seconds);
}

}  // namespace selfspec
