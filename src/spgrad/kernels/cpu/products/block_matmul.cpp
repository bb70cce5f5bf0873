// Products of a matrix of dense blocks: block_spmm, its transpose (block_spmm on the column view)
// and block_sddmm are each other's derivatives.
#include <algorithm>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/split_rows.h"
#include "common/threads.h"
#include "products/blocks/block_lines.h"
#include "products/blocks/small_dots.h"
#include "products/blocks/small_products.h"

namespace spgrad {
namespace {

// The factors of a block_sddmm: the rows of g belong to the lines of the view, the rows of x to the
// other direction. The block of an entry p of line i has the dot products of the rows of g in block
// i and the rows of x in block idx[p].
template <class index_t, class T>
struct BlockSddmm {
  BlockView<index_t> view;
  const T *g, *x;
  int64_t n;
  T* out;
  int64_t row = -1;  // if all lines are pieces of one line: this line

  int64_t line(int64_t i) const { return row < 0 ? i : row; }
};

// Lines [first, last). The operand whose rows belong to the columns of the blocks has been turned.
template <int kBytes, class index_t, class T>
SPGRAD_INLINE void sddmm_lines(const BlockSddmm<index_t, T>& a, int64_t first, int64_t last) {
  const auto& view = a.view;
  for (int64_t i = first; i < last; ++i) {
    const T* const own = a.g + a.line(i) * view.lines * a.n;
    for (int64_t p = view.ptr[i]; p < view.ptr[i + 1]; ++p) {
      const T* const other = a.x + view.idx[p] * view.width * a.n;
      const Factors<T> factors = view.transposed ? Factors<T>{other, own} : Factors<T>{own, other};
      const int64_t columns = view.transposed ? view.lines : view.width;
      add_small_products<kBytes>(SmallProducts<T>{
          .factors = &factors,
          .count = 1,
          .rows = view.transposed ? view.width : view.lines,
          .inner = a.n,
          .columns = columns,
          .w_step = a.n,
          .turned = false,
          .x_step = columns,
          .out = a.out + view.place(p),
          .out_step = columns,
      });
    }
  }
}

// The same for blocks of kSide x kSide elements. x has been turned.
template <int kBytes, int kSide, class index_t, class T>
SPGRAD_INLINE void sddmm_squares(const BlockSddmm<index_t, T>& a, int64_t first, int64_t last,
                                 T* buffer) {
  constexpr int kElements = kFull<T, kBytes>;
  if constexpr (kElements >= kSide) {
    using Blocks = Square<kElements, kSide>;
    const int64_t padded = Blocks::padded(a.n), size = kSide * padded;
    for (int64_t i = first; i < last; ++i) {
      turn_blocks(a.g + a.line(i) * kSide * a.n, kSide, a.n, padded, 0, 1, buffer);
      Blocks::rotate(buffer, a.n, buffer + size);
      for (int64_t p = a.view.ptr[i]; p < a.view.ptr[i + 1]; ++p) {
        const T* const other = a.x + a.view.idx[p] * size;
        T* const out = a.out + a.view.place(p);
        a.view.transposed ? Blocks::template dots<true>(buffer + size, other, a.n, out)
                          : Blocks::template dots<false>(buffer + size, other, a.n, out);
      }
    }
  }
}

// The side of the blocks if they are multiplied as squares, otherwise 0.
template <class index_t>
int64_t square_side(const BlockView<index_t>& view, int64_t n, int64_t lanes) {
  constexpr int64_t kSquare = 4;
  const int64_t side = view.lines;
  return side == view.width && side == kSquare && side <= lanes && n > 0 ? side : 0;
}

// Lines [first, last). `side` is from square_side, and `padded` from turn_blocks.
template <class index_t, class T>
void sddmm_part(const BlockSddmm<index_t, T>& a, int64_t first, int64_t last, int64_t side,
                int64_t padded) {
  const auto buffer = array<T>((side + 1) * side * padded);
  with_vectors([&]<int kBytes>() {
    side == 0 ? sddmm_lines<kBytes>(a, first, last)
              : sddmm_squares<kBytes, 4>(a, first, last, buffer.get());
  });
}

template <class F>
void dispatch_real(ScalarType index, ScalarType dtype, const F& f) {
  STD_TORCH_CHECK(dtype == ScalarType::Float || dtype == ScalarType::Double,
                  "spgrad: blocks are multiplied in float32 and float64, not ", dtype,
                  "; use the entry-wise kernels.");
  dispatch_index(index, [&]<class index_t>() {
    dtype == ScalarType::Float ? f.template operator()<index_t, float>()
                               : f.template operator()<index_t, double>();
  });
}

void check_other(const Tensor& x, int64_t width) {
  STD_TORCH_CHECK(x.size(0) % width == 0, "spgrad: `x` has ", x.size(0), " rows, which blocks of ",
                  width, " do not divide.");
}

Tensor block_spmm(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
                  const Tensor& val, const Tensor& x, int64_t block_lines, int64_t block_width,
                  bool transposed) {
  check_blocks(ptr, idx, perm, block_lines, block_width);
  check_tensor(x, 2, x.scalar_type(), "x");
  check_tensor(val, 1, x.scalar_type(), "val");
  check_size(val, 0, idx.size(0) * block_lines * block_width, "val");
  check_other(x, block_width);
  const int64_t lines = ptr.size(0) - 1, n = x.size(1);
  Tensor y = empty(x, {lines * block_lines, n});
  dispatch_real(ptr.scalar_type(), x.scalar_type(), [&]<class index_t, class T>() {
    const auto view = view_of<index_t>(ptr, idx, perm, block_lines, block_width, transposed);
    multiply_blocks(view, lines, data<T>(val), data<T>(x), n, mutable_data<T>(y));
  });
  return y;
}

Tensor block_sddmm(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
                   const Tensor& g, const Tensor& x, int64_t block_lines, int64_t block_width,
                   bool transposed) {
  check_blocks(ptr, idx, perm, block_lines, block_width);
  check_tensor(g, 2, x.scalar_type(), "g");
  check_tensor(x, 2, x.scalar_type(), "x");
  check_size(g, 0, (ptr.size(0) - 1) * block_lines, "g");
  check_size(g, 1, x.size(1), "g");
  check_other(x, block_width);
  const int64_t n = x.size(1);
  Tensor out = empty(x, {idx.size(0) * block_lines * block_width});
  dispatch_real(ptr.scalar_type(), x.scalar_type(), [&]<class index_t, class T>() {
    BlockSddmm<index_t, T> a{
        .view = view_of<index_t>(ptr, idx, perm, block_lines, block_width, transposed),
        .g = data<T>(g),
        .x = data<T>(x),
        .n = n,
        .out = mutable_data<T>(out),
    };
    const int64_t lanes = vector_bytes() / static_cast<int64_t>(sizeof(T));
    const int64_t side = square_side(a.view, n, lanes);
    const int64_t together = side > 0 ? lanes / side : 1;
    const int64_t padded = (n + together - 1) / together * together;
    // the operand whose rows lie along the rows of the stored blocks
    const bool own = side == 0 && transposed;
    const Tensor& given = own ? g : x;
    const int64_t size = own ? block_lines : block_width;
    const Tensor turned = empty(x, {given.size(0), padded});
    parallel_entries(given.size(0) / size, size * padded, [&](int64_t first, int64_t last) {
      turn_blocks(data<T>(given), size, n, padded, first, last, mutable_data<T>(turned));
    });
    (own ? a.g : a.x) = data<T>(turned);
    const SplitRows<index_t> split(a.view.ptr, ptr.size(0) - 1);
    split.parallel(a.view.size() * std::max<int64_t>(n, 1), [&](const auto& part) {
      auto of_part = a;
      of_part.view.ptr = part.starts;
      of_part.row = part.row;
      sddmm_part(of_part, part.first, part.last, side, padded);
    });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("block_spmm", SPGRAD_BOX(&block_spmm));
  m.impl("block_sddmm", SPGRAD_BOX(&block_sddmm));
}

}  // namespace spgrad
