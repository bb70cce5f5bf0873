// The column view of a row view.
#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/payload.h"
#include "layouts/histogram.h"

namespace spgrad {
namespace {

constexpr int64_t kAhead = 12;      // entries between a prefetch and its use
constexpr int64_t kNear = 160'000;  // entries whose places the second-level cache holds

// True if most rows have about the same columns as the row before, as in grids and bands: the
// places that are written are then in the caches. Looks at 64 rows.
template <class index_t>
bool rows_are_alike(const index_t* ptr, const index_t* idx, int64_t m) {
  constexpr int64_t kSamples = 64, kLine = 64 / sizeof(index_t);
  const int64_t step = std::max<int64_t>(m / kSamples, 1);
  const auto middle = [&](int64_t i) { return int64_t{idx[ptr[i] + (ptr[i + 1] - ptr[i]) / 2]}; };
  int64_t sampled = 0, near = 0;
  for (int64_t i = 0; i + 1 < m; i += step) {
    if (ptr[i] == ptr[i + 1] || ptr[i + 1] == ptr[i + 2]) continue;
    ++sampled;
    near += std::abs(middle(i + 1) - middle(i)) <= kLine;
  }
  return near > sampled / 4 * 3;
}

// The column view of a row view by a stable counting sort (Gustavson 1978, "Two fast algorithms for
// sparse matrices"). Columns may be unsorted and repeat. cptr (n + 1,), row (nse,) and what the
// payload writes (nse,) are preallocated. Each chunk of entries writes to its own places, so the
// result does not depend on the number of threads. O(m + n + nse) time and memory.
template <class index_t, class Payload>
void transpose_plan(const index_t* ptr, const index_t* idx, int64_t m, int64_t n, int64_t nse,
                    index_t* cptr, index_t* row, const Payload& payload) {
  Histogram<index_t> histogram(idx, nse, n);
  histogram.scan(cptr);
  const auto scatter = [&]<bool kPrefetch>(int64_t chunk, int64_t begin, int64_t end) {
    index_t* next = histogram.chunk(chunk);
    int64_t i = std::upper_bound(ptr, ptr + m + 1, begin) - ptr - 1;
    for (int64_t p = begin; p < end; ++i) {
      for (const int64_t stop = std::min<int64_t>(ptr[i + 1], end); p < stop; ++p) {
        if constexpr (kPrefetch) {
          // Columns come in any order, so the counters and then the places of later entries are
          // prefetched.
          __builtin_prefetch(next + idx[std::min(p + 2 * kAhead, end - 1)], 1);
          const int64_t soon = next[idx[std::min(p + kAhead, end - 1)]];
          __builtin_prefetch(row + soon, 1);
          __builtin_prefetch(payload.out + soon, 1);
        }
        const int64_t q = next[idx[p]]++;
        row[q] = static_cast<index_t>(i);
        payload.place(q, p);
      }
    }
  };
  const bool prefetch = nse > kNear && !rows_are_alike(ptr, idx, m);
  histogram.chunks().for_each([&](int64_t chunk, int64_t begin, int64_t end) {
    prefetch ? scatter.template operator()<true>(chunk, begin, end)
             : scatter.template operator()<false>(chunk, begin, end);
  });
}

std::tuple<Tensor, Tensor, Tensor> transpose_plan_op(const Tensor& ptr, const Tensor& idx,
                                                     int64_t n, const std::optional<Tensor>& val) {
  check_view(ptr, idx, std::nullopt);
  const int64_t nse = idx.size(0);
  check_payload(val, nse);
  Tensor cptr = empty(ptr, {n + 1}), row = empty(ptr, {nse}), moved = empty_payload(val, ptr, nse);
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    dispatch_payload<index_t>(val, moved, [&](auto payload) {
      transpose_plan(data<index_t>(ptr), data<index_t>(idx), ptr.size(0) - 1, n, nse,
                     mutable_data<index_t>(cptr), mutable_data<index_t>(row), payload);
    });
  });
  return {cptr, row, moved};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("transpose_plan", SPGRAD_BOX(&transpose_plan_op));
}

}  // namespace spgrad
