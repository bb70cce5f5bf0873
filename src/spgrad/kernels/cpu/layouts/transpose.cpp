// The column view of a row view.
#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/payload.h"
#include "layouts/histogram.h"
#include "reading/machine.h"

namespace spgrad {
namespace {

constexpr int64_t kAhead = 12;  // entries between a prefetch and its use

// The most bytes that are written to places in any order without a prefetch. Where the shared cache
// answers about as fast as the second-level cache, stores wait for it no longer than a prefetch
// takes, until the bytes are a good part of it.
int64_t bytes_within_reach() {
  return std::max(near_bytes(), far_cost() > 1 ? 0 : shared_bytes() / 4);
}

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

// A row view with ptr (m + 1,) and idx (nse,), whose columns may be unsorted and repeat, and where
// its entries go: row (nse,) and what the payload writes (nse,) are allocated, not initialised.
template <class index_t, class Payload>
struct Scatter {
  const index_t *ptr, *idx;
  int64_t m;
  index_t* row;
  Payload payload;
};

// Writes the entries [begin, end), each at the next place of its column, and counts these places
// up. The operands come by value, so that writes cannot change them and they stay in registers.
template <bool kPrefetch, class index_t, class Payload>
SPGRAD_INLINE void scatter(const Scatter<index_t, Payload> to, index_t* next, int64_t begin,
                           int64_t end) {
  int64_t i = std::upper_bound(to.ptr, to.ptr + to.m + 1, begin) - to.ptr - 1;
  for (int64_t p = begin; p < end; ++i) {
    for (const int64_t stop = std::min<int64_t>(to.ptr[i + 1], end); p < stop; ++p) {
      if constexpr (kPrefetch) {
        // Columns come in any order, so the counters and then the places of later entries are
        // prefetched.
        __builtin_prefetch(next + to.idx[std::min(p + 2 * kAhead, end - 1)], 1);
        const int64_t soon = next[to.idx[std::min(p + kAhead, end - 1)]];
        __builtin_prefetch(to.row + soon, 1);
        __builtin_prefetch(to.payload.out + soon, 1);
      }
      const int64_t q = next[to.idx[p]]++;
      to.row[q] = static_cast<index_t>(i);
      to.payload.place(q, p);
    }
  }
}

// The column view of a row view by a stable counting sort (Gustavson 1978, "Two fast algorithms for
// sparse matrices"). cptr (n + 1,) is allocated. Each chunk of entries writes to its own places, so
// the result does not depend on the number of threads. O(m + n + nse) time and memory.
template <class index_t, class Payload>
void transpose_plan(const Scatter<index_t, Payload> to, int64_t n, int64_t nse, index_t* cptr) {
  Histogram<index_t> histogram(to.idx, nse, n);
  histogram.scan(cptr);
  const int64_t written = nse * (sizeof(*to.row) + sizeof(*to.payload.out));
  const bool prefetch = written > bytes_within_reach() && !rows_are_alike(to.ptr, to.idx, to.m);
  histogram.chunks().for_each([&](int64_t chunk, int64_t begin, int64_t end) {
    index_t* const next = histogram.chunk(chunk);
    prefetch ? scatter<true>(to, next, begin, end) : scatter<false>(to, next, begin, end);
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
      const Scatter<index_t, decltype(payload)> to{
          .ptr = data<index_t>(ptr),
          .idx = data<index_t>(idx),
          .m = ptr.size(0) - 1,
          .row = mutable_data<index_t>(row),
          .payload = payload,
      };
      transpose_plan(to, n, nse, mutable_data<index_t>(cptr));
    });
  });
  return {cptr, row, moved};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("transpose_plan", SPGRAD_BOX(&transpose_plan_op));
}

}  // namespace spgrad
