// Triangular substitution: host function. The contract and the loops are in triangular.h.
#include "solves/triangular.h"

#include <algorithm>
#include <atomic>
#include <tuple>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/threads.h"
#include "reading/order.h"
#include "reading/traffic.h"
#include "solves/dtypes.h"

namespace spgrad {
namespace {

// Columns over threads: each takes a whole number of cache lines of a row of x, since results are
// written there. Fewer columns are solved by one thread.
template <class index_t, class scalar_t>
int64_t substitute(const Triangular<index_t, scalar_t>& a) {
  constexpr int64_t kLine = std::max<int64_t>(64 / sizeof(scalar_t), 2);
  const int64_t lines = a.n / kLine;
  const auto solve = [&](int64_t column, int64_t stop) {
    int64_t failed = -1;
    with_vectors([&]<int kBytes>() { failed = substitute_columns<kBytes>(a, column, stop); });
    return failed;
  };
  const int64_t least = kSerialWork / (a.nse + a.m + 1) / kLine + 1;  // lines for one thread
  if (lines < 2 * least) return solve(0, a.n);
  std::atomic<int64_t> failed = -1;  // all find the same
  torch::stable::parallel_for(0, lines, least, [&](int64_t first, int64_t last) {
    const int64_t found = solve(first * kLine, last == lines ? a.n : last * kLine);
    failed.store(found, std::memory_order_relaxed);
  });
  return failed;
}

std::tuple<Tensor, Tensor> solve_triangular(const Tensor& ptr, const Tensor& idx,
                                            const std::optional<Tensor>& perm, const Tensor& val,
                                            const Tensor& b, bool upper, bool unit) {
  check_view(ptr, idx, perm);
  check_tensor(b, 2, b.scalar_type(), "b");
  check_tensor(val, 1, b.scalar_type(), "val");
  check_size(val, 0, idx.size(0), "val");
  const int64_t m = ptr.size(0) - 1;
  check_size(b, 0, m, "b");
  const Tensor ordered = perm ? in_view_order(*perm, val) : val;
  Tensor x = empty(b, {m, b.size(1)}), failed = empty(b, {1}, ScalarType::Long);
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    dispatch_solvable(b.scalar_type(), [&]<class scalar_t>() {
      const Triangular<index_t, scalar_t> a{.ptr = data<index_t>(ptr),
                                            .idx = data<index_t>(idx),
                                            .val = data<scalar_t>(ordered),
                                            .b = data<scalar_t>(b),
                                            .x = mutable_data<scalar_t>(x),
                                            .m = m,
                                            .n = b.size(1),
                                            .nse = idx.size(0),
                                            .upper = upper,
                                            .unit = unit,
                                            .ahead = choose_traffic(idx, b, {}).ahead};
      *mutable_data<int64_t>(failed) = substitute(a);
    });
  });
  return {x, failed};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("solve_triangular", SPGRAD_BOX(&solve_triangular));
}

}  // namespace spgrad
