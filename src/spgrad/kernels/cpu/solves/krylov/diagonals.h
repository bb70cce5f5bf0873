// How a matrix of a few diagonals is stored without indices.
#pragma once

#include <cstdint>

namespace spgrad {

// Values by diagonals are (diagonals, stride): those of a diagonal lie side by side, by rows, and
// are 0 where the matrix has no element.
inline int64_t stride_of(int64_t rows) {
  constexpr int64_t kLine = 16;  // one more, lest rows share a set of a cache in all diagonals
  return (rows + kLine - 1) / kLine * kLine + kLine;
}

// Rows of a tile: the values of a diagonal at as many consecutive rows, of which the first is a
// multiple of this number.
constexpr int64_t kTileRows = 128;

}  // namespace spgrad
