// Keys and values: per layer, slot and KV head, keys as [cells / 16][padded width][16], values as [cells][padded].
#pragma once
#include "kinds.h"
#include "memory.h"

namespace selfspec {

class Cache {
 public:
  Cache(int layers, int slots, int length, int kv_heads, int width, bool half);
  void* keys(int layer, int slot, int head) const { return keys_.as<void>(at(layer, slot, head)); }
  void* values(int layer, int slot, int head) const { return values_.as<void>(at(layer, slot, head)); }
  // The block of a cell's key; its lane is cell % 16.
  void* key_block(int layer, int slot, int head, std::int64_t cell) const {
    return keys_.as<void>(at(layer, slot, head) + cell / 16 * 16 * padded_ * element());
  }
  void* value_cell(int layer, int slot, int head, std::int64_t cell) const {
    return values_.as<void>(at(layer, slot, head) + cell * padded_ * element());
  }
  bool half() const { return half_; }
  int slots() const { return slots_; }
  int length() const { return length_; }
  std::size_t bytes() const { return keys_.size() + values_.size(); }
  // Take over what a shorter cache of the same model holds.
  void copy_from(const Cache& other);
  // Copy a cell to another one of the same slot, in every layer.
  void move(int slot, std::int64_t from, std::int64_t to);

 private:
  std::size_t element() const { return half_ ? 2 : 4; }
  std::size_t head_bytes() const { return static_cast<std::size_t>(cells_) * padded_ * element(); }
  std::size_t at(int layer, int slot, int head) const {
    return ((static_cast<std::size_t>(layer) * slots_ + slot) * kv_heads_ + head) * head_bytes();
  }
  int layers_, slots_, length_, cells_, kv_heads_, width_, padded_;
  bool half_;
  Memory keys_, values_;
};

}  // namespace selfspec
