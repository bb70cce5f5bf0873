// Kernels that convert between row pointers and row numbers.
#include <algorithm>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/targets.h"
#include "common/threads.h"
#include "layouts/histogram.h"

namespace spgrad {
namespace {

// Whether an entry of [first, last), first >= 1, is less than the entry before it.
template <class index_t>
SPGRAD_CLONES bool descends(const index_t* row, int64_t first, int64_t last) {
  index_t any = 0;  // as wide as a row, so that vectors hold one for each
  for (int64_t p = first; p < last; ++p) any |= static_cast<index_t>(row[p] < row[p - 1]);
  return any != 0;
}

// Writes ptr (m + 1,) if row (nse,) ascends: the position of the last entry of a row gives the end
// of the row, so no count waits for the count before. Otherwise returns false, and the contents of
// ptr have no meaning. Serial.
template <class index_t>
bool compress_sorted(const index_t* row, int64_t nse, int64_t m, index_t* ptr) {
  constexpr int64_t kBlock = 4096;
  std::fill_n(ptr, m + 1, index_t{0});
  for (int64_t block = 0; block < nse; block += kBlock) {
    const int64_t end = std::min(block + kBlock, nse);
    if (descends(row, std::max<int64_t>(block, 1), end)) return false;
    for (int64_t p = block; p < end; ++p) ptr[row[p] + 1] = static_cast<index_t>(p + 1);
  }
  for (int64_t i = 0; i < m; ++i) ptr[i + 1] = std::max(ptr[i], ptr[i + 1]);
  return true;
}

// row (nse,) in any order. O(m + nse) time.
Tensor compress_op(const Tensor& row, int64_t m) {
  check_tensor(row, 1, row.scalar_type(), "row");
  const int64_t nse = row.size(0);
  check_fits(row.scalar_type(), nse);
  Tensor ptr = empty(row, {m + 1});
  dispatch_index(row.scalar_type(), [&]<class index_t>() {
    const index_t* rows = data<index_t>(row);
    if (!compress_sorted(rows, nse, m, mutable_data<index_t>(ptr))) {
      Histogram(rows, nse, m).scan(mutable_data<index_t>(ptr));
    }
  });
  return ptr;
}

// Writes row numbers into out (nse,), or, if there are columns idx (nse,), row numbers and columns
// into out (2, nse). O(m + nse) time.
template <class index_t>
void expand(const index_t* ptr, int64_t m, int64_t nse, const index_t* idx, index_t* out) {
  STD_TORCH_CHECK(ptr[m] == nse, "spgrad: `ptr` counts ", ptr[m], " entries, not ", nse, ".");
  parallel_rows(ptr, m, 1, [&](int64_t first, int64_t last) {
    // Whole groups take no branch that depends on the length of a short row: what a group writes
    // beyond its row is written again by the next row.
    constexpr int64_t kTogether = 8;
    const int64_t writable = ptr[last] - kTogether;
    for (int64_t i = first; i < last; ++i) {
      int64_t p = ptr[i];
      const int64_t stop = ptr[i + 1];
      if (p <= writable) {
        do {
          std::fill_n(out + p, kTogether, static_cast<index_t>(i));
          p += kTogether;
        } while (p < stop && p <= writable);
      }
      for (; p < stop; ++p) out[p] = static_cast<index_t>(i);
    }
    if (idx != nullptr) std::copy(idx + ptr[first], idx + ptr[last], out + nse + ptr[first]);
  });
}

Tensor expand_op(const Tensor& ptr, int64_t nse) {
  check_view(ptr, ptr, std::nullopt);
  Tensor row = empty(ptr, {nse});
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    expand<index_t>(data<index_t>(ptr), ptr.size(0) - 1, nse, nullptr, mutable_data<index_t>(row));
  });
  return row;
}

Tensor coordinates_op(const Tensor& ptr, const Tensor& idx) {
  check_view(ptr, idx, std::nullopt);
  const int64_t nse = idx.size(0);
  Tensor out = empty(ptr, {2, nse});
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    expand<index_t>(data<index_t>(ptr), ptr.size(0) - 1, nse, data<index_t>(idx),
                    mutable_data<index_t>(out));
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("compress", SPGRAD_BOX(&compress_op));
  m.impl("coordinates", SPGRAD_BOX(&coordinates_op));
  m.impl("expand", SPGRAD_BOX(&expand_op));
}

}  // namespace spgrad
