// Kernels that turn lines into what is across them: transposition, and dense matrices.
#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "common/dispatch.h"
#include "common/payload.h"
#include "layouts/histogram.h"

namespace spgrad {
namespace {

constexpr int64_t kAhead = 12;      // entries between a fetch and its use
constexpr int64_t kNear = 160'000;  // entries whose places the second-level cache holds

// True if most rows have about the columns of the row before, as those of grids and bands: then
// what is written lies in the caches. Asks 64 rows.
template <class index_t>
bool follows(const index_t* ptr, const index_t* idx, int64_t m) {
  constexpr int64_t kAsked = 64, kLine = 64 / sizeof(index_t);
  const int64_t step = std::max<int64_t>(m / kAsked, 1);
  const auto middle = [&](int64_t i) { return int64_t{idx[ptr[i] + (ptr[i + 1] - ptr[i]) / 2]}; };
  int64_t asked = 0, near = 0;
  for (int64_t i = 0; i + 1 < m; i += step) {
    if (ptr[i] == ptr[i + 1] || ptr[i + 1] == ptr[i + 2]) continue;
    ++asked;
    near += std::abs(middle(i + 1) - middle(i)) <= kLine;
  }
  return near > asked / 4 * 3;
}

// The column view of a row view by a stable counting sort (Gustavson 1978, "Two fast algorithms for
// sparse matrices"). Columns may be unsorted and repeat. cptr (n + 1,), row (nse,) and what the
// payload writes (nse,) are preallocated. Every chunk of entries writes to its own places: the
// result does not depend on the number of threads. O(m + n + nse) time and memory.
template <class index_t, class Payload>
void transpose_plan(const index_t* ptr, const index_t* idx, int64_t m, int64_t n, int64_t nse,
                    index_t* cptr, index_t* row, const Payload& payload) {
  Histogram<index_t> histogram(idx, nse, n);
  histogram.scan(cptr);
  const auto scatter = [&]<bool kFetch>(int64_t c, int64_t begin, int64_t end) {
    index_t* next = histogram.chunk(c);
    int64_t i = std::upper_bound(ptr, ptr + m + 1, begin) - ptr - 1;
    for (int64_t p = begin; p < end; ++i) {
      for (const int64_t stop = std::min<int64_t>(ptr[i + 1], end); p < stop; ++p) {
        if constexpr (kFetch) {
          // Columns come in any order: fetch the counter, then the places, of entries to come.
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
  const bool fetch = nse > kNear && !follows(ptr, idx, m);
  histogram.chunks().for_each([&](int64_t c, int64_t begin, int64_t end) {
    fetch ? scatter.template operator()<true>(c, begin, end)
          : scatter.template operator()<false>(c, begin, end);
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

// ptr (m + 1,), idx (nse,) distinct in each line, perm (nse,) or null, val (nse,) or (nse, d).
// Lines are in items of `lines` each, and indices of item i begin at i * n, as in a block-diagonal
// matrix. Every line is cleared right before its elements are written, while it is in the cache.
// out (m, n) or (m, n, d). O(m n d + nse) time.
Tensor densify_op(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
                  const Tensor& val, int64_t lines, int64_t n) {
  check_view(ptr, idx, perm);
  STD_TORCH_CHECK(val.dim() == 1 || val.dim() == 2, "spgrad: `val` has ", val.dim(),
                  " dimensions, not 1 or 2.");
  check_tensor(val, val.dim(), val.scalar_type(), "val");
  check_size(val, 0, idx.size(0), "val");
  STD_TORCH_CHECK(lines >= 1 && n >= 1, "spgrad: `lines` and `n` are at least 1.");
  const int64_t m = ptr.size(0) - 1, d = val.dim() == 2 ? val.size(1) : 1;
  Tensor out = val.dim() == 2 ? empty(val, {m, n, d}) : empty(val, {m, n});
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    const index_t *starts = data<index_t>(ptr), *indices = data<index_t>(idx);
    const index_t* order = data<index_t>(perm);
    dispatch_size(val.element_size(), [&]<class T>() {
      const T* const in = data<T>(val);
      T* const made = mutable_data<T>(out);
      parallel_entries(m, n * d, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          T* const line = made + i * n * d;
          std::fill_n(line, n * d, T{});
          T* const item = line - i / lines * n * d;
          for (int64_t p = starts[i]; p < starts[i + 1]; ++p) {
            const int64_t from = order == nullptr ? p : int64_t{order[p]};
            if (d == 1) {
              item[indices[p]] = in[from];
            } else {
              std::copy_n(in + from * d, d, item + indices[p] * d);
            }
          }
        }
      });
    });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("densify", SPGRAD_BOX(&densify_op));
  m.impl("transpose_plan", SPGRAD_BOX(&transpose_plan_op));
}

}  // namespace spgrad
