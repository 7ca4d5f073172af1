// What the parts of the Python module share.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "kinds.h"

namespace selfspec {

namespace nb = nanobind;
using namespace nb::literals;

template <class T, class... Shape> using Array = nb::ndarray<T, nb::numpy, nb::device::cpu, nb::c_contig, Shape...>;
using Bytes = Array<const std::uint8_t, nb::ndim<1>>;
using Vector = Array<const float, nb::ndim<1>>;
using Grid = Array<float, nb::ndim<2>>;
using Integers = Array<const std::int64_t, nb::ndim<1>>;

inline void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

// The place of a name in a list.
template <std::size_t N> int named(const std::string& name, const char* const (&names)[N], const char* what) {
  for (std::size_t i = 0; i < N; i++)
    if (name == names[i]) return static_cast<int>(i);
  throw std::invalid_argument(std::string("no ") + what + " " + name);
}

// A packed matrix, with a hold on the array that has its bytes.
struct Held {
  Matrix w;
  Bytes data;
  Held(const std::string& kind, int rows, int columns, Bytes bytes);
};

const Kernels& kernels_named(const std::string& name);
void bind_model(nb::module_& m);

}  // namespace selfspec
