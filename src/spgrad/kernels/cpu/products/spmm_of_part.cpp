// Sparse times dense for parts of a matrix, without memory besides the result: y = A x without
// tiles, and y[rows] += A x. The contracts are in kernels/reference; the loops over entries are
// those of spmm.
#include <algorithm>
#include <type_traits>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/threads.h"
#include "products/spmm.h"
#include "reading/traffic.h"

namespace spgrad {
namespace {

// Elements of the sums that a thread has on its stack before it adds them to y.
constexpr int64_t kSums = 2048;

// Where the products of the lines are written: line i to row rows[i] of y, or to row i if rows is
// null. With `add` they are added to these rows.
template <class scalar_t>
struct Target {
  scalar_t* y;
  const int64_t* rows;
  int64_t n;
  bool add;

  scalar_t* row(int64_t i) const { return y + (rows == nullptr ? i : rows[i]) * n; }
};

// Lines [first, last) of a product of float32 or float64, as many at a time as fit in `kSums`. At
// least one line fits.
template <class index_t, class scalar_t>
void into_by_vectors(Spmm<index_t, scalar_t> a, const Target<scalar_t>& to, int64_t first,
                     int64_t last) {
  if (!to.add) return spmm_lines(a, first, last);
  alignas(64) scalar_t sums[kSums];
  const int64_t step = kSums / a.n;
  a.traffic.streamed = false;
  choose_few_way(a, first, last);
  for (int64_t begin = first; begin < last; begin += step) {
    const int64_t end = std::min(begin + step, last);
    a.y = sums - begin * a.n;
    spmm_lines(a, begin, end);
    for (int64_t i = begin; i < end; ++i) {
      const scalar_t* const from = sums + (i - begin) * a.n;
      scalar_t* const out = to.row(i);
      for (int64_t j = 0; j < a.n; ++j) out[j] += from[j];
    }
  }
}

// The same for every dtype and every number of columns: some columns of a line at a time.
template <class index_t, class scalar_t>
void into_by_columns(const Spmm<index_t, scalar_t>& a, const Target<scalar_t>& to, int64_t first,
                     int64_t last) {
  using sum_t = accumulate_t<scalar_t>;
  constexpr int64_t kColumns = 64;
  for (int64_t i = first; i < last; ++i) {
    for (int64_t column = 0; column < a.n; column += kColumns) {
      const int64_t count = std::min(kColumns, a.n - column);
      sum_t sums[kColumns];
      scalar_t* const out = to.row(i) + column;
      for (int64_t j = 0; j < count; ++j) sums[j] = to.add ? widen(out[j]) : sum_t{};
      for (int64_t p = a.ptr[i]; p < a.ptr[i + 1]; ++p) {
        const sum_t weight = widen(a.val[p]);
        const scalar_t* const from = a.row(p) + column;
        for (int64_t j = 0; j < count; ++j) sums[j] += weight * widen(from[j]);
      }
      for (int64_t j = 0; j < count; ++j) out[j] = narrow<scalar_t>(sums[j]);
    }
  }
}

void multiply(const Tensor& y, const Tensor& ptr, const Tensor& idx,
              const std::optional<Tensor>& rows, const Tensor& val, const Tensor& x, bool add) {
  const int64_t m = ptr.size(0) - 1, n = x.size(1);
  if (n == 0) return;
  dispatch(ptr.scalar_type(), x.scalar_type(), [&]<class index_t, class scalar_t>() {
    Traffic traffic = choose_traffic(idx, x, {.sums_only = true});
    traffic.streamed = !add && worth_streaming(y);
    const Spmm<index_t, scalar_t> a{.ptr = data<index_t>(ptr),
                                    .idx = data<index_t>(idx),
                                    .perm = nullptr,
                                    .val = data<scalar_t>(val),
                                    .x = data<scalar_t>(x),
                                    .y = mutable_data<scalar_t>(y),
                                    .n = n,
                                    .nse = idx.size(0),
                                    .traffic = traffic};
    const Target<scalar_t> to{.y = a.y, .rows = data<int64_t>(rows), .n = n, .add = add};
    parallel_rows(a.ptr, m, n, [&](int64_t first, int64_t last) {
      if constexpr (std::is_floating_point_v<scalar_t>) {
        if (n <= kSums) {
          into_by_vectors(a, to, first, last);
          if (a.traffic.streamed) finish_streams();
          return;
        }
      }
      into_by_columns(a, to, first, last);
    });
  });
}

Tensor untiled_spmm(const Tensor& ptr, const Tensor& idx, const Tensor& val, const Tensor& x) {
  check_spmm(ptr, idx, std::nullopt, val, x);
  Tensor y = empty(x, {ptr.size(0) - 1, x.size(1)});
  multiply(y, ptr, idx, std::nullopt, val, x, false);
  return y;
}

void add_spmm(const Tensor& y, const Tensor& ptr, const Tensor& idx,
              const std::optional<Tensor>& rows, const Tensor& val, const Tensor& x) {
  check_spmm(ptr, idx, std::nullopt, val, x);
  check_tensor(y, 2, x.scalar_type(), "y");
  check_size(y, 1, x.size(1), "y");
  if (rows) {
    check_tensor(*rows, 1, ScalarType::Long, "rows");
    check_size(*rows, 0, ptr.size(0) - 1, "rows");
  } else {
    check_size(y, 0, ptr.size(0) - 1, "y");
  }
  multiply(y, ptr, idx, rows, val, x, true);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("untiled_spmm", SPGRAD_BOX(&untiled_spmm));
  m.impl("add_spmm", SPGRAD_BOX(&add_spmm));
}

}  // namespace spgrad
