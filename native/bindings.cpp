// The Python module selfspec._native; src/selfspec/_native.pyi describes it.
#include "bindings.h"

#include <cstring>

#include "kernels.h"
#include "memory.h"
#include "model.h"
#include "pack.h"

namespace selfspec {
namespace {

Kind kind_named(const std::string& name) {
  return static_cast<Kind>(named(name, {"fp32", "bf16", "fp16", "int8", "int4"}, "kind"));
}

// A matrix whose bytes are still to come, of sizes that can be.
Matrix shaped(const std::string& kind, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t most = std::int64_t{1} << 30;
  require(rows > 0 && columns > 0 && rows <= most && columns <= most, "a matrix has rows and columns");
  return {kind_named(kind), static_cast<int>(rows), static_cast<int>(columns), nullptr};
}

std::vector<std::string> names_of_sets() {
  std::vector<std::string> names;
  for (const Kernels* set : kernel_sets()) names.emplace_back(set->name);
  return names;
}

void pack_floats(const std::string& kind, Array<const float, nb::ndim<2>> weights, Array<std::uint8_t, nb::ndim<1>> out) {
  const Matrix w = shaped(kind, weights.shape(0), weights.shape(1));
  require(out.size() == w.bytes(), "out has the wrong size");
  const nb::gil_scoped_release release;
  pack(w.kind, weights.data(), w.n, w.k, out.data());
}

using Words = Array<const std::uint16_t, nb::ndim<2>>;
void pack_levels(const std::string& kind, Array<const std::uint8_t, nb::ndim<2>> levels, Words scales, Words minima,
                 Array<std::uint8_t, nb::ndim<1>> out) {
  const Matrix w = shaped(kind, levels.shape(0), levels.shape(1));
  require(w.kind == Kind::int8 || w.kind == Kind::int4, "levels are of int8 or int4");
  require(w.k % BLOCK == 0, "a row is whole blocks");
  for (const Words* given : {&scales, &minima})
    require(given->shape(0) == levels.shape(0) && given->shape(1) * BLOCK == levels.shape(1), "a block has one scale and minimum");
  require(out.size() == w.bytes(), "out has the wrong size");
  const nb::gil_scoped_release release;
  pack(w.kind, Levels{levels.data(), scales.data(), minima.data()}, w.n, w.k, out.data());
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
#ifdef SELFSPEC_X86
  const std::pair<const char*, int> all[] = {
      {"avx2", __builtin_cpu_supports("avx2")},         {"fma", __builtin_cpu_supports("fma")},
      {"f16c", __builtin_cpu_supports("f16c")},         {"avx512f", __builtin_cpu_supports("avx512f")},
      {"avx512bw", __builtin_cpu_supports("avx512bw")}, {"avx512dq", __builtin_cpu_supports("avx512dq")},
      {"avx512vl", __builtin_cpu_supports("avx512vl")}, {"avx512vnni", __builtin_cpu_supports("avx512vnni")},
#ifdef SELFSPEC_AVX_VNNI_KERNELS
      {"avxvnni", __builtin_cpu_supports("avxvnni")},
#endif
  };
  for (const auto& [name, there] : all)
    if (there) found.emplace_back(name);
#endif
#ifdef SELFSPEC_NEON
  found.emplace_back("neon");
  if (has_dot_products()) found.emplace_back("dotprod");
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

}  // namespace

const Kernels& kernels_named(const std::string& name) {
  for (const Kernels* set : kernel_sets())
    if (name == set->name) return *set;
  throw std::invalid_argument("no kernels " + name + " on this processor");
}

Held::Held(const std::string& kind, int rows, int columns, Bytes bytes) : w(shaped(kind, rows, columns)), data(bytes) {
  w.data = bytes.data();
  require(reinterpret_cast<std::uintptr_t>(bytes.data()) % 4 == 0, "packed bytes begin at a multiple of 4");
  require(bytes.size() == w.bytes(), "these bytes are no packed matrix of this kind and shape");
}

}  // namespace selfspec

using namespace selfspec;

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // an engine may live as long as the interpreter
  m.def("features", &features);
  m.def("kernel_sets", &names_of_sets);
  m.def("allocate", &allocate, "size"_a);
  m.def("packed_bytes", [](const std::string& kind, int rows, int columns) {
    return shaped(kind, rows, columns).bytes();
  }, "kind"_a, "rows"_a, "columns"_a);
  m.def("pack", &pack_floats, "kind"_a, "weights"_a.noconvert(), "out"_a.noconvert());
  m.def("pack_levels", &pack_levels, "kind"_a, "levels"_a.noconvert(), "scales"_a.noconvert(), "minima"_a.noconvert(),
        "out"_a.noconvert());
  m.def("unpack_rows", &unpack_rows, "matrix"_a, "rows"_a.noconvert(), "out"_a.noconvert());
  m.def("take_rows", &take_rows, "matrix"_a, "rows"_a.noconvert(), "out"_a.noconvert());
  m.def("largest", &largest_rows, "logits"_a.noconvert(), "index"_a.noconvert(), "logit"_a.noconvert());
  nb::class_<Held>(m, "Matrix")
      .def(nb::init<const std::string&, int, int, Bytes>(), "kind"_a, "rows"_a, "columns"_a, "data"_a.noconvert());
  bind_model(m);
}
