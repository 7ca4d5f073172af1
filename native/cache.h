// Keys and values: per layer, slot and KV head, keys as [places / 16][padded width][16], values as [places][padded]; in
// int8 with their scales (see Element).
#pragma once
#include <vector>

#include "kinds.h"
#include "memory.h"

namespace selfspec {

// Cell c of a text lies in place c % places(layer). A layer that has a place for every cell is no ring; the places
// of a ring are whole segments of attention, so that a segment lies in one piece.
class Cache {
 public:
  // `rings`: for each layer how many cells must be kept apart, 0: all `length` of them.
  Cache(std::vector<int> rings, int slots, int length, int kv_heads, int width, Element element);
  void* keys(int layer, int slot, int head) const { return keys_.as<void>(at(layer, slot, head)); }
  void* values(int layer, int slot, int head) const { return values_.as<void>(at(layer, slot, head)); }
  // The block of a cell's key; its lane is cell % 16.
  void* key_block(int layer, int slot, int head, std::int64_t cell) const {
    return keys_.as<void>(at(layer, slot, head) + place(layer, cell) / 16 * 16 * cell_bytes());
  }
  void* value_cell(int layer, int slot, int head, std::int64_t cell) const {
    return values_.as<void>(at(layer, slot, head) + place(layer, cell) * cell_bytes());
  }
  Element element() const { return element_; }
  int layers() const { return static_cast<int>(places_.size()); }
  int slots() const { return slots_; }
  int length() const { return length_; }
  int kv_heads() const { return kv_heads_; }
  int width() const { return width_; }
  int places(int layer) const { return places_[layer]; }
  // The fewest places of a layer that has fewer than cells, 0: none has.
  int smallest_ring() const;
  std::size_t bytes() const { return keys_.size() + values_.size(); }
  // Take over what a shorter cache of the same model holds.
  void copy_from(const Cache& other);
  // Copy a cell to another one of the same slot, in every layer.
  void move(int slot, std::int64_t from, std::int64_t to);

 private:
  std::size_t cell_bytes() const { return cell_elements(element_, padded_) * element_bytes(element_); }
  std::size_t place(int layer, std::int64_t cell) const {
    return static_cast<std::size_t>(cell < places_[layer] ? cell : cell % places_[layer]);
  }
  std::size_t head_bytes(int layer) const { return places_[layer] * cell_bytes(); }
  std::size_t at(int layer, int slot, int head) const {
    return begins_[layer] + (static_cast<std::size_t>(slot) * kv_heads_ + head) * head_bytes(layer);
  }
  int slots_, length_, kv_heads_, width_, padded_;
  Element element_;
  std::vector<int> places_;
  std::vector<std::size_t> begins_;  // of each layer, and the end
  Memory keys_, values_;
};

}  // namespace selfspec
