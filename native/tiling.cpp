#include "tiling.h"

#include <algorithm>

namespace selfspec {

Path Rows::path(int r, int window) const {
  const int length = static_cast<int>(positions[r]) + 1, first = window && length > window ? length - window : 0;
  if (!lineage) return {length, length, nullptr, first};
  const std::int64_t* line = lineage + static_cast<std::int64_t>(r) * depth;
  const int root = static_cast<int>(line[0]);
  int direct = root;
  while (direct < length && line[direct - root] == direct) direct++;
  return {length, direct, line + (direct - root), first};
}

namespace {

int end_of(const Path& path) { return (path.length + SEGMENT - 1) / SEGMENT; }

}  // namespace

int Tiling::segments(int row) const { return end_of(paths[row]) - paths[row].first / SEGMENT; }

Tiling::Tiling(const Rows& rows, int seen, const Sizes& sizes, const Heads& heads, int members) : window(seen) {
  int most = 0;
  for (int r = 0; r < rows.count; r++) {
    paths.push_back(rows.path(r, window));
    most = std::max(most, segments(r));
  }
  std::vector<Piece> tiles;
  for (int r = 0; r < rows.count;) {
    Piece tile{r, 0, 0, paths[r].first / SEGMENT, 0};
    for (; r < rows.count && tile.rows < rows_per_tile(heads) && rows.slots[r] == rows.slots[tile.first]; r++, tile.rows++) {
      tile.low = std::min(tile.low, paths[r].first / SEGMENT);
      tile.high = std::max(tile.high, end_of(paths[r]));
    }
    tiles.push_back(tile);
  }
  // few pieces: one for each segment, folded afterwards; the bits are the same
  const bool apart = tiles.size() * sizes.kv_heads < 4u * members && std::int64_t{rows.count} * most <= 4096;
  if (apart) partials = most;
  for (auto tile = tiles.rbegin(); tile != tiles.rend(); ++tile)
    for (int head = 0; head < sizes.kv_heads; head++) {
      if (!apart) pieces.push_back({tile->first, tile->rows, head, tile->low, tile->high});
      for (int low = tile->low; apart && low < tile->high; low++)
        pieces.push_back({tile->first, tile->rows, head, low, low + 1});
    }
}

}  // namespace selfspec
