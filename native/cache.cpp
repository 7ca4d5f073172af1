#include "cache.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace selfspec {

Cache::Cache(std::vector<int> rings, int slots, int length, int kv_heads, int width, Element element)
    : slots_(slots), length_(length), kv_heads_(kv_heads), width_(width), padded_(round_up(width, 8)),
      element_(element), places_(std::move(rings)) {
  // beyond this sizes would not fit into their types; as memory it is out of reach anyway
  const double most = 2.0 * places_.size() * slots * kv_heads * (1.0 * length + 16) * cell_bytes();
  if (length > 1 << 30 || most > 1e15) throw std::bad_alloc();
  const int all = round_up(length, 16);
  begins_.push_back(0);
  for (int& places : places_) {
    const std::int64_t ring = (std::int64_t{places} + SEGMENT - 1) / SEGMENT * SEGMENT;
    places = places && ring < all ? static_cast<int>(ring) : all;
    begins_.push_back(begins_.back() + static_cast<std::size_t>(slots) * kv_heads * places * cell_bytes());
  }
  keys_ = Memory(begins_.back()), values_ = Memory(begins_.back());
}

int Cache::smallest_ring() const {
  const int least = *std::min_element(places_.begin(), places_.end());
  return least < length_ ? least : 0;
}

void Cache::copy_from(const Cache& other) {
  for (int layer = 0; layer < layers(); layer++)
    for (int slot = 0; slot < slots_; slot++)
      for (int head = 0; head < kv_heads_; head++) {
        std::memcpy(keys(layer, slot, head), other.keys(layer, slot, head), other.head_bytes(layer));
        std::memcpy(values(layer, slot, head), other.values(layer, slot, head), other.head_bytes(layer));
      }
}

void Cache::move(int slot, std::int64_t from, std::int64_t to) {
  const std::size_t size = element_bytes(element_), lanes = 16 * padded_ * size;
  for (int layer = 0; layer < layers(); layer++)
    for (int head = 0; head < kv_heads_; head++) {
      char* out = static_cast<char*>(key_block(layer, slot, head, to));
      const char* in = static_cast<const char*>(key_block(layer, slot, head, from));
      const std::size_t there = to % 16, here = from % 16;
      for (int d = 0; d < width_; d++) std::memcpy(out + (d * 16 + there) * size, in + (d * 16 + here) * size, size);
      if (element_ == Element::int8) std::memcpy(out + lanes + there * 2, in + lanes + here * 2, 2);
      std::memcpy(value_cell(layer, slot, head, to), value_cell(layer, slot, head, from), cell_bytes());
    }
}

}  // namespace selfspec
