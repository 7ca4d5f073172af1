// How attention of a pass is cut into pieces, for the layers that have one window.
#pragma once
#include <vector>

#include "model.h"

namespace selfspec {

struct Piece {
  int first, rows, head, low, high;  // rows [first, first + rows), segments [low, high)
};

struct Tiling {
  Tiling(const Rows& rows, int window, const Sizes& sizes, const Heads& heads, int members);
  int segments(int row) const;  // that a row sees
  std::size_t stride(const Heads& heads) const { return partials * (heads.padded + 8); }  // of a head of a row

  int window;
  std::vector<Path> paths;
  std::vector<Piece> pieces;  // the longest first
  std::size_t partials = 1;   // of a head of a row: 1 if segments are folded at once
};

}  // namespace selfspec
