// Substitution with triangles whose elements lie on a few diagonals, such as incomplete factors of
// stencils on regular grids.
#include "common/dispatch.h"
#include "common/lanes.h"
#include "solves/krylov/diagonals.h"
#include "solves/krylov/vectors.h"

namespace spgrad {
namespace {

constexpr int kRows = 16;          // of a block, in which only the neighbouring diagonal reaches
constexpr int64_t kScaled = 4096;  // rows that are multiplied at a time

// A triangle with ones on its diagonal. Row i needs x of the rows i + offset, all before i in the
// order of substitution. The neighbouring diagonal is the one of offset -1 or 1.
template <class scalar_t>
struct UnitTriangle {
  List<const scalar_t*> val;  // of row 0 of the diagonals that are no neighbours
  List<int64_t> offsets;      // of these
  const scalar_t* neighbour;  // of row 0 of the neighbouring diagonal, or null
  int64_t rows, reach;        // the largest distance of an offset
  const scalar_t* before;     // factors of b, or null
  const scalar_t* b;
  scalar_t* x;

  SPGRAD_INLINE scalar_t right(int64_t i) const { return before ? before[i] * b[i] : b[i]; }
};

// x of rows from `first` on, `step` is 1 or -1, of which some have no element on some diagonals.
template <class scalar_t>
SPGRAD_INLINE void solve_rows(const UnitTriangle<scalar_t>& a, int64_t first, int64_t count,
                              int64_t step) {
  for (int64_t k = 0, i = first; k < count; ++k, i += step) {
    scalar_t sum = a.right(i);
    for (size_t d = 0; d < a.val.size(); ++d) {
      const int64_t j = i + a.offsets[d];
      if (j >= 0 && j < a.rows) sum -= a.val[d][i] * a.x[j];
    }
    const int64_t j = i - step;
    if (a.neighbour != nullptr && j >= 0 && j < a.rows) sum -= a.neighbour[i] * a.x[j];
    a.x[i] = sum;
  }
}

// x of a block of rows from `row` on, in ascending or descending order. What the other diagonals
// subtract is known before the block begins, so the chain of dependences is one multiply-add a row.
template <bool kUp, int kBytes, class scalar_t>
SPGRAD_INLINE void solve_block(const UnitTriangle<scalar_t>& a, int64_t row) {
  constexpr int kWidth = kFull<scalar_t, kBytes>, kRegisters = kRows / kWidth;
  Lanes<scalar_t, kWidth> sums[kRegisters], by, near;
  for (int r = 0; r < kRegisters; ++r) {
    load<kWidth>(a.b + row + r * kWidth, sums[r]);
    if (a.before != nullptr) {
      load<kWidth>(a.before + row + r * kWidth, by);
      sums[r] *= by;
    }
  }
  for (size_t d = 0; d < a.val.size(); ++d) {
    const scalar_t *const val = a.val[d] + row, *const x = a.x + row + a.offsets[d];
    for (int r = 0; r < kRegisters; ++r) {
      load<kWidth>(val + r * kWidth, by);
      load<kWidth>(x + r * kWidth, near);
      sums[r] -= by * near;
    }
  }
  if (a.neighbour == nullptr) {
    for (int r = 0; r < kRegisters; ++r) store<kWidth>(sums[r], a.x + row + r * kWidth);
    return;
  }
  scalar_t right[kRows];
  for (int r = 0; r < kRegisters; ++r) store<kWidth>(sums[r], right + r * kWidth);
  const scalar_t* const by_last = a.neighbour + row;
  scalar_t* const x = a.x + row;
  scalar_t last = kUp ? x[-1] : x[kRows];
  for (int r = 0; r < kRows; ++r) {
    const int at = kUp ? r : kRows - 1 - r;
    last = right[at] - by_last[at] * last;
    x[at] = last;
  }
}

// Multiplies x by `after` as soon as no row needs it any more, while it lies in a cache.
template <class scalar_t>
struct Scaling {
  const scalar_t* after;  // or null
  scalar_t* x;
  int64_t rows, done = 0;  // rows of the order of substitution that are multiplied

  // x is needed no more in the first `free` rows of the order of substitution.
  template <bool kUp>
  SPGRAD_INLINE void advance(int64_t free, bool all) {
    if (after == nullptr || (!all && free < done + kScaled)) return;
    const int64_t first = kUp ? done : rows - free, last = kUp ? free : rows - done;
    for (int64_t i = first; i < last; ++i) x[i] *= after[i];
    done = free;
  }
};

template <bool kUp, int kBytes, class scalar_t>
SPGRAD_INLINE void solve_all(const UnitTriangle<scalar_t>& a, Scaling<scalar_t> scaling) {
  const int64_t blocks = a.rows / kRows, rest = a.rows - blocks * kRows;
  if (!kUp) solve_rows(a, a.rows - 1, rest, -1);
  for (int64_t k = 0; k < blocks; ++k) {
    const int64_t row = (kUp ? k : blocks - 1 - k) * kRows;
    if (kUp ? row >= a.reach : row + kRows + a.reach <= a.rows) {
      solve_block<kUp, kBytes>(a, row);
    } else {
      solve_rows(a, kUp ? row : row + kRows - 1, kRows, kUp ? 1 : -1);
    }
    scaling.template advance<kUp>(kUp ? row + kRows - a.reach : a.rows - row - a.reach, false);
  }
  if (kUp) solve_rows(a, blocks * kRows, rest, 1);
  scaling.template advance<kUp>(a.rows, true);
}

// Whether the offsets are those of a triangle below the diagonal: all negative, or all positive.
bool is_lower(const int64_t* offsets, int64_t count) {
  const bool lower = count == 0 || offsets[0] < 0;
  for (int64_t d = 0; d < count; ++d) {
    const int64_t distance = lower ? -offsets[d] : offsets[d];
    STD_TORCH_CHECK(distance == 1 || distance >= kRows, "spgrad: `offsets` has ", offsets[d],
                    "; 1, and ", kRows, " or more, all of one sign, are accepted.");
  }
  return lower;
}

Tensor substitute_diagonals(const Tensor& val, const Tensor& offsets,
                            const std::optional<Tensor>& scale, const Tensor& b, bool transpose) {
  const VectorShape s = shape_of(b, "b");
  check_size(b, 0, 1, "b");
  check_size(b, 2, 1, "b");
  check_tensor(offsets, 1, ScalarType::Long, "offsets");
  check_tensor(val, 2, b.scalar_type(), "val");
  check_size(val, 0, offsets.size(0), "val");
  check_size(val, 1, stride_of(s.m), "val");
  if (scale) {
    check_tensor(*scale, 1, b.scalar_type(), "scale");
    check_size(*scale, 0, s.m, "scale");
  }
  const int64_t count = offsets.size(0);
  const int64_t* const at = data<int64_t>(offsets);
  const bool lower = is_lower(at, count);
  Tensor x = empty(b, {1, s.m, 1});
  dispatch_real(b, "b", [&]<class scalar_t>() {
    const scalar_t* const factors = scale ? data<scalar_t>(*scale) : nullptr;
    UnitTriangle<scalar_t> a{.val = {},
                             .offsets = {},
                             .neighbour = nullptr,
                             .rows = s.m,
                             .reach = 0,
                             .before = transpose ? nullptr : factors,
                             .b = data<scalar_t>(b),
                             .x = mutable_data<scalar_t>(x)};
    for (int64_t d = 0; d < count; ++d) {
      if (std::abs(at[d]) >= s.m) continue;  // outside of the matrix
      // element (i, i - d) of the transpose is element (i - d, i)
      const int64_t offset = transpose ? -at[d] : at[d];
      const scalar_t* const stored = data<scalar_t>(val) + d * val.size(1);
      const scalar_t* const row = transpose ? stored + offset : stored;
      a.reach = std::max(a.reach, std::abs(offset));
      if (std::abs(offset) == 1) {
        a.neighbour = row;
      } else {
        a.val.push_back(row);
        a.offsets.push_back(offset);
      }
    }
    const Scaling<scalar_t> scaling{transpose ? factors : nullptr, a.x, s.m};
    with_vectors([&]<int kBytes>() {
      lower != transpose ? solve_all<true, kBytes>(a, scaling)
                         : solve_all<false, kBytes>(a, scaling);
    });
  });
  return x;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("substitute_diagonals", SPGRAD_BOX(&substitute_diagonals));
}

}  // namespace spgrad
