// Kernels that convert between matrices of blocks and matrices of single elements. A block has
// `block_lines` lines of `block_width` elements. A strip is the lines of elements in one line of
// blocks.
#include <algorithm>
#include <bit>
#include <limits>
#include <tuple>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/payload.h"
#include "common/threads.h"

namespace spgrad {
namespace {

template <class index_t, class Payload>
struct BlockView {
  const index_t *ptr, *idx;  // (strips + 1,), (nb,)
  int64_t block_lines, block_width;
  bool transposed;             // values are stored index by index, not line by line
  index_t *out_ptr, *out_idx;  // (strips * block_lines + 1,), (nb * block_lines * block_width,)
  Payload payload;             // as long as out_idx

  // Writes the lines of the strips [first, last).
  void expand(int64_t first, int64_t last) const {
    switch (block_width) {  // short loops of a known length need no branch
      case 2:
        return expand<2>(first, last);
      case 4:
        return expand<4>(first, last);
      default:
        return expand<0>(first, last);
    }
  }

 private:
  template <int64_t kWidth>
  SPGRAD_INLINE void expand(int64_t first, int64_t last) const {
    const int64_t width = kWidth == 0 ? block_width : kWidth, size = block_lines * width;
    const int64_t line_step = transposed ? 1 : width, element_step = transposed ? block_lines : 1;
    for (int64_t strip = first; strip < last; ++strip) {
      int64_t q = int64_t{ptr[strip]} * size;
      for (int64_t line = 0; line < block_lines; ++line) {
        out_ptr[strip * block_lines + line] = static_cast<index_t>(q);
        for (int64_t p = ptr[strip]; p < ptr[strip + 1]; ++p) {
          const int64_t value = p * size + line * line_step;
          for (int64_t j = 0; j < width; ++j, ++q) {
            out_idx[q] = static_cast<index_t>(int64_t{idx[p]} * width + j);
            payload.place(q, value + j * element_step);
          }
        }
      }
    }
  }
};

// The scalar view of a matrix of nb blocks: see BlockView. val is null, or holds all elements of
// the blocks. O(lines + elements) time; nothing but the result is allocated.
std::tuple<Tensor, Tensor, Tensor> expand_blocks_op(const Tensor& ptr, const Tensor& idx,
                                                    int64_t block_lines, int64_t block_width,
                                                    bool transposed,
                                                    const std::optional<Tensor>& val) {
  check_view(ptr, idx, std::nullopt);
  const int64_t strips = ptr.size(0) - 1, lines = strips * block_lines;
  const int64_t nse = idx.size(0) * block_lines * block_width;
  check_fits(ptr.scalar_type(), nse);
  check_payload(val, nse);
  Tensor out_ptr = empty(ptr, {lines + 1}), out_idx = empty(ptr, {nse});
  Tensor moved = empty_payload(val, ptr, nse);
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    dispatch_payload<index_t>(val, moved, [&](auto payload) {
      const BlockView<index_t, decltype(payload)> blocks{
          .ptr = data<index_t>(ptr),
          .idx = data<index_t>(idx),
          .block_lines = block_lines,
          .block_width = block_width,
          .transposed = transposed,
          .out_ptr = mutable_data<index_t>(out_ptr),
          .out_idx = mutable_data<index_t>(out_idx),
          .payload = payload,
      };
      parallel_rows(blocks.ptr, strips, block_lines * block_width,
                    [&](int64_t first, int64_t last) { blocks.expand(first, last); });
      blocks.out_ptr[lines] = static_cast<index_t>(nse);
    });
  });
  return {out_ptr, out_idx, moved};
}

// The blocks that hold an entry. Lines ascend.
template <class index_t>
struct BlockSearch {
  const index_t *ptr, *idx;
  int64_t block_lines, block_width;
  int64_t line_step, element_step;  // distances of the elements of a block
  index_t* columns;                 // (nse,): the blocks of a strip, from its first entry on
  index_t* places;  // (nse,): of each entry among the elements of the strip's blocks

  // Finds the blocks of a strip in ascending order. `at` and `next` are memory for one number for
  // each line of the strip. Returns the number of blocks.
  int64_t find(int64_t strip, index_t* at, index_t* next) const {
    switch (block_lines) {  // short loops of a known length need no branch
      case 2:
        return find<2>(strip, at, next);
      case 4:
        return find<4>(strip, at, next);
      default:
        return find<0>(strip, at, next);
    }
  }

 private:
  template <int64_t kLines>
  SPGRAD_INLINE int64_t find(int64_t strip, index_t* at, index_t* next) const {
    const int64_t lines = kLines == 0 ? block_lines : kLines;
    constexpr index_t kNone = std::numeric_limits<index_t>::max();
    // A shift if possible: a division takes as long as all other work on an entry.
    const int shift = std::has_single_bit(static_cast<uint64_t>(block_width))
                          ? std::countr_zero(static_cast<uint64_t>(block_width))
                          : -1;
    const index_t* start = ptr + strip * lines;
    index_t* column = columns + start[0];
    for (int64_t line = 0; line < lines; ++line) {
      at[line] = start[line];
      next[line] = start[line] < start[line + 1] ? idx[start[line]] : kNone;
    }
    for (int64_t block = 0;; ++block) {
      index_t least = kNone;
      for (int64_t line = 0; line < lines; ++line) least = std::min(least, next[line]);
      if (least == kNone) return block;
      column[block] = shift < 0 ? least / static_cast<index_t>(block_width) : least >> shift;
      const int64_t first = int64_t{column[block]} * block_width, stop = first + block_width;
      const int64_t base = block * lines * block_width;
      for (int64_t line = 0; line < lines; ++line) {
        while (next[line] < stop) {
          places[at[line]] =
              static_cast<index_t>(base + line * line_step + (next[line] - first) * element_step);
          ++at[line];
          next[line] = at[line] < start[line + 1] ? idx[at[line]] : kNone;
        }
      }
    }
  }
};

// Calls f(first, last) on ranges of strips, in parallel.
template <class F>
void parallel_strips(int64_t strips, int64_t nse, const F& f) {
  const int64_t each = nse / std::max<int64_t>(strips, 1) + 1;
  parallel_entries(strips, 4 * each, f);
}

// ptr (m + 1,) with m a multiple of `block_lines`, every line ascending. Returns the pointers (m /
// block_lines + 1,) and columns (nb,) of the blocks, and, for each of their elements, its entry, -1
// for none, or its value in val (nse,), zero for none. The elements of a block are stored line by
// line, or column by column if `transposed`. O(m + nse + result) time; besides the result,
// allocates two numbers an entry.
std::tuple<Tensor, Tensor, Tensor> group_blocks_op(const Tensor& ptr, const Tensor& idx,
                                                   int64_t block_lines, int64_t block_width,
                                                   bool transposed,
                                                   const std::optional<Tensor>& val) {
  check_view(ptr, idx, std::nullopt);
  check_payload(val, idx.size(0));
  STD_TORCH_CHECK(block_lines > 0 && block_width > 0 && (ptr.size(0) - 1) % block_lines == 0,
                  "spgrad: blocks of ", block_lines, " x ", block_width,
                  " do not divide the lines.");
  const int64_t strips = (ptr.size(0) - 1) / block_lines, nse = idx.size(0);
  const int64_t size = block_lines * block_width;
  Tensor out_ptr = empty(ptr, {strips + 1}), out_idx, moved;
  Tensor columns = empty(ptr, {nse}), places = empty(ptr, {nse});
  check_fits(ptr.scalar_type(), nse * size);  // no place is larger
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    const index_t* const entries = data<index_t>(ptr);
    const BlockSearch<index_t> search{
        .ptr = entries,
        .idx = data<index_t>(idx),
        .block_lines = block_lines,
        .block_width = block_width,
        .line_step = transposed ? 1 : block_width,
        .element_step = transposed ? block_lines : 1,
        .columns = mutable_data<index_t>(columns),
        .places = mutable_data<index_t>(places),
    };
    index_t* starts = mutable_data<index_t>(out_ptr);
    starts[0] = 0;
    parallel_strips(strips, nse, [&](int64_t first, int64_t last) {
      List<index_t> at(block_lines), next(block_lines);
      for (int64_t strip = first; strip < last; ++strip) {
        starts[strip + 1] = static_cast<index_t>(search.find(strip, at.data(), next.data()));
      }
    });
    for (int64_t strip = 0; strip < strips; ++strip) starts[strip + 1] += starts[strip];
    out_idx = empty(ptr, {starts[strips]});
    moved = empty_payload(val, ptr, starts[strips] * size);
    index_t* const found = mutable_data<index_t>(out_idx);
    dispatch_payload<index_t>(val, moved, [&](auto payload) {
      parallel_strips(strips, nse, [&](int64_t first, int64_t last) {
        std::fill(payload.out + starts[first] * size, payload.out + starts[last] * size,
                  payload.kNone);
        for (int64_t strip = first; strip < last; ++strip) {
          const int64_t begin = entries[strip * block_lines];
          const int64_t end = entries[(strip + 1) * block_lines];
          std::copy_n(search.columns + begin, starts[strip + 1] - starts[strip],
                      found + starts[strip]);
          const int64_t base = starts[strip] * size;
          for (int64_t p = begin; p < end; ++p) payload.place(base + search.places[p], p);
        }
      });
    });
  });
  return {out_ptr, out_idx, moved};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("expand_blocks", SPGRAD_BOX(&expand_blocks_op));
  m.impl("group_blocks", SPGRAD_BOX(&group_blocks_op));
}

}  // namespace spgrad
