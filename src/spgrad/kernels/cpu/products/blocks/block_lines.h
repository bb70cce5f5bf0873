// Lines of dense blocks: their views, their sums of products, and operands stored for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "common/arguments.h"
#include "common/memory.h"
#include "common/split_rows.h"
#include "products/blocks/small_dots.h"
#include "products/blocks/small_products.h"

namespace spgrad {

// A view of blocks: ptr (lines of blocks + 1), idx (nb), perm (nb) or null. A block has `lines` x
// `width` elements: `lines` in the direction of the lines of the view. They are stored line by
// line, or index by index if `transposed`.
template <class index_t>
struct BlockView {
  const index_t* ptr;
  const index_t* idx;
  const index_t* perm;
  int64_t lines, width;
  bool transposed;

  int64_t size() const { return lines * width; }
  int64_t place(int64_t p) const {
    return (perm == nullptr ? p : static_cast<int64_t>(perm[p])) * size();
  }
  int64_t longest(int64_t first, int64_t last) const {
    int64_t most = 0;
    for (int64_t i = first; i < last; ++i) most = std::max<int64_t>(most, ptr[i + 1] - ptr[i]);
    return most;
  }
};

template <class index_t>
BlockView<index_t> view_of(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
                           int64_t lines, int64_t width, bool transposed) {
  return {.ptr = data<index_t>(ptr),
          .idx = data<index_t>(idx),
          .perm = data<index_t>(perm),
          .lines = lines,
          .width = width,
          .transposed = transposed};
}

inline void check_blocks(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
                         int64_t lines, int64_t width) {
  check_view(ptr, idx, perm);
  STD_TORCH_CHECK(lines >= 1 && width >= 1, "spgrad: `block_lines` and `block_width` are ", lines,
                  " and ", width, "; 1 or more is accepted.");
}

// y (lines of the view * lines, n) = A x, with x (columns of blocks * width, n) and val (nb * lines
// * width). Every element of y in the lines [first, last) is written. The order of a sum depends on
// its line and on the sizes alone. O(elements * n) time, memory for the longest line.
template <class index_t, class T>
void spmm_block_lines(const BlockView<index_t>& view, const T* val, const T* x, int64_t n,
                      int64_t first, int64_t last, T* y) {
  const auto factors = array<Factors<T>>(view.longest(first, last));
  with_vectors([&]<int kBytes>() {
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = view.ptr[i], count = view.ptr[i + 1] - begin;
      for (int64_t p = 0; p < count; ++p) {
        const int64_t column = view.idx[begin + p];
        factors[p] = {val + view.place(begin + p), x + column * view.width * n};
      }
      const SmallProducts<T> line{
          .factors = factors.get(),
          .count = count,
          .rows = view.lines,
          .inner = view.width,
          .columns = n,
          .w_step = view.transposed ? view.lines : view.width,
          .turned = view.transposed,
          .x_step = n,
          .out = y + i * view.lines * n,
          .out_step = n,
      };
      n == 1 ? add_to_column<kBytes>(line, factors.get()) : add_small_products<kBytes>(line);
    }
  });
}

// The same for all lines, in parallel. Long lines are cut, and the sums of their pieces are added.
template <class index_t, class T>
void multiply_blocks(const BlockView<index_t>& view, int64_t lines, const T* val, const T* x,
                     int64_t n, T* y) {
  if (n == 0) return;
  const SplitRows<index_t> split(view.ptr, lines);
  const auto pieces = array<T>(split.slots() * view.lines * n);
  split.parallel(view.size() * n, [&](const auto& part) {
    auto of_part = view;
    of_part.ptr = part.starts;
    T* const to = part.row < 0 ? y : pieces.get() + part.slot * view.lines * n;
    spmm_block_lines(of_part, val, x, n, part.first, part.last, to);
  });
  split.join(pieces.get(), view.lines * n, y);
}

// Turns the rows of x, `size` at a time: a block (size, n) becomes one (padded, size), with zeros
// at the end. Blocks [first, last).
template <class T>
void turn_blocks(const T* x, int64_t size, int64_t n, int64_t padded, int64_t first, int64_t last,
                 T* out) {
  for (int64_t b = first; b < last; ++b) {
    const T* const from = x + b * size * n;
    T* const to = out + b * size * padded;
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t c = 0; c < size; ++c) to[j * size + c] = from[c * n + j];
    }
    std::fill_n(to + n * size, (padded - n) * size, T{0});
  }
}

}  // namespace spgrad
