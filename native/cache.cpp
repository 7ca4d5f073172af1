#include "cache.h"

#include <cstring>

namespace selfspec {

Cache::Cache(int layers, int slots, int length, int kv_heads, int width, bool half)
    : layers_(layers), slots_(slots), length_(length), cells_(round_up(length, 16)), kv_heads_(kv_heads),
      width_(width), padded_(round_up(width, 8)), half_(half),
      keys_(layers * slots * kv_heads * head_bytes()), values_(layers * slots * kv_heads * head_bytes()) {}

void Cache::copy_from(const Cache& other) {
  for (int layer = 0; layer < layers_; layer++)
    for (int slot = 0; slot < slots_; slot++)
      for (int head = 0; head < kv_heads_; head++) {
        std::memcpy(keys(layer, slot, head), other.keys(layer, slot, head), other.head_bytes());
        std::memcpy(values(layer, slot, head), other.values(layer, slot, head), other.head_bytes());
      }
}

void Cache::move(int slot, std::int64_t from, std::int64_t to) {
  const std::size_t size = element();
  for (int layer = 0; layer < layers_; layer++)
    for (int head = 0; head < kv_heads_; head++) {
      char* out = static_cast<char*>(key_block(layer, slot, head, to)) + to % 16 * size;
      const char* in = static_cast<const char*>(key_block(layer, slot, head, from)) + from % 16 * size;
      for (int d = 0; d < width_; d++) std::memcpy(out + d * 16 * size, in + d * 16 * size, size);
      std::memcpy(value_cell(layer, slot, head, to), value_cell(layer, slot, head, from), width_ * size);
    }
}

}  // namespace selfspec
