// Chooses how products read and write memory; no other file does.
#pragma once

#include <cstdint>

#include "common/arguments.h"
#include "reading/prefetch.h"

namespace spgrad {

// How a product reads x and writes y. Chosen by choose_traffic; it never changes a result.
struct Traffic {
  Ahead ahead;          // rows of x that are prefetched
  bool tiled = false;   // columns of x are copied into tiles
  bool staged = false;  // rows of x of a few columns are copied side by side before they are used
  bool scattered = false;   // rows of x that are staged come from beyond the cache
  bool streamed = false;    // y is written past the caches
  bool by_blocks = false;   // a block of columns is computed for all rows before the next block
  bool by_pairs = false;    // the first of two blocks of columns prefetches rows of x to their end
  bool whole_rows = false;  // each row of x is read to its end before the next one
  bool distant = false;     // columns and values come from memory, or from a cache that is far
  bool fetched = false;     // columns and values are prefetched
  bool cached = false;      // columns and values are likely to be in the shared cache
};

// True if writing y past the caches saves time: rows of y are whole cache lines, and y is much
// larger than the cache of a core.
bool worth_streaming(const Tensor& y);

// Whether values that are read in arbitrary order are often missing from the cache of a core.
bool are_far(const Tensor& val);

// A tile is a copy of some columns of x in which the rows are contiguous. So the rows are in fewer
// pages, and in the second-level cache if the tile fits into it. A row of a tile is two cache
// lines. Two tiles are copied at a time, because memory is read faster in longer pieces; with 128
// columns of float32, two tiles are half of x.
inline constexpr int64_t kTileBytes = 128, kTilesAtOnce = 2;

// Where the columns are more than one block, products take all blocks of some rows of y before the
// next rows; but see Traffic::by_blocks. These rows have at most so many entries. So a row of x is
// read to its end soon after its beginning, probably while its page is in the TLB and the cache has
// its next lines. To begin a block takes time, so short rows are not taken one by one.
inline constexpr int64_t kEntriesAtOnce = 32;

// Rows of x may be staged if they have at most this many bytes: one, two or four columns of
// float32, or one or two of float64.
inline constexpr int64_t kStagedBytes = 16;

// What a kernel does with the rows that it gathers.
struct RowUse {
  bool sums_only = false;  // one multiply-add for each element, and no dot product
  bool may_tile = false;   // it can read tiles
  int64_t lines = 0;       // it can stage the rows of x for so many rows of the matrix
};

// How to gather the rows of x (k, n) that idx names.
Traffic choose_traffic(const Tensor& idx, const Tensor& x, RowUse use);

}  // namespace spgrad
