// Triangular substitution: host function. The contract and the loops are in triangular.h and
// transposed.h.
#include "solves/triangular.h"

#include <algorithm>
#include <atomic>
#include <tuple>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/threads.h"
#include "reading/order.h"
#include "reading/prefetch.h"
#include "reading/traffic.h"
#include "solves/dtypes.h"
#include "solves/transposed.h"

namespace spgrad {
namespace {

// Solves for columns [column, stop). Returns the first row whose diagonal is 0, or -1.
template <class index_t, class scalar_t>
int64_t substitute(const Triangular<index_t, scalar_t>& a, bool transpose, int64_t column,
                   int64_t stop) {
  int64_t failed = -1;
  if (transpose) {
    with_vectors([&]<int kBytes>() { failed = substitute_transposed<kBytes>(a, column, stop); });
  } else {
    with_vectors([&]<int kBytes>() { failed = substitute_columns<kBytes>(a, column, stop); });
  }
  return failed;
}

// Divides the columns among threads, in whole cache lines of a row of x. The last thread also gets
// the columns of a partial line, because substitute_columns takes two columns or more. Each thread
// copies its columns into tiles: without tiles, the parts of the rows of x that a thread reads
// would take as many sets of its caches as whole rows. Few columns, or little work, go to one
// thread.
template <class index_t, class scalar_t>
int64_t share_columns(const Triangular<index_t, scalar_t>& a, bool transpose, const Tensor& b) {
  constexpr int64_t kLine = 64 / sizeof(scalar_t), kWidest = 8;  // lines in a row of a tile
  const int64_t lines = a.n / kLine, work = (a.nse + a.m + 1) * a.n;
  const int64_t workers =
      std::min({int64_t{torch::stable::get_num_threads()}, lines, work / kSerialWork});
  if (workers < 2) return substitute(a, transpose, 0, a.n);
  const int64_t widest = std::min((lines + workers - 1) / workers, kWidest);
  const int64_t size = a.m * (widest * kLine + a.n % kLine);
  Tensor memory = empty(b, {workers * size});
  scalar_t* const tiles = mutable_data<scalar_t>(memory);
  std::atomic<int64_t> failed = -1;  // all threads find the same row
  torch::stable::parallel_for(0, workers, 1, [&](int64_t first, int64_t last) {
    const int64_t stop = last * lines / workers;
    for (int64_t line = first * lines / workers; line < stop; line += kWidest) {
      const int64_t column = line * kLine, next = std::min(line + kWidest, stop);
      const int64_t end = next == lines ? a.n : next * kLine;
      Triangular<index_t, scalar_t> part = a;
      part.stride = end - column;
      part.x = tiles + first * size - column;
      part.out = a.x;
      part.streamed = a.n % kLine == 0 && reinterpret_cast<uintptr_t>(a.x) % 64 == 0;
      const int64_t found = substitute(part, transpose, column, end);
      failed.store(found, std::memory_order_relaxed);
    }
    finish_streams();
  });
  return failed;
}

std::tuple<Tensor, Tensor> solve_triangular(const Tensor& ptr, const Tensor& idx,
                                            const std::optional<Tensor>& perm, const Tensor& val,
                                            const Tensor& b, bool upper, bool unit,
                                            bool transpose) {
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
      *mutable_data<int64_t>(failed) = share_columns(a, transpose, b);
    });
  });
  return {x, failed};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("solve_triangular", SPGRAD_BOX(&solve_triangular));
}

}  // namespace spgrad
