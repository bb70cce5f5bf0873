// Kernels that check index structures.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/order.h"
#include "common/threads.h"

namespace spgrad {
namespace {

// The first position in [begin, end) where idx is outside [0, n), otherwise `end`. There is no
// branch within a block of indices, so the compiler vectorises the common case that all indices are
// good.
template <class index_t>
SPGRAD_CLONES int64_t first_outside(const index_t* idx, int64_t begin, int64_t end, int64_t n) {
  using unsigned_t = std::make_unsigned_t<index_t>;
  if (n <= 0) return begin;
  const unsigned_t last =
      static_cast<unsigned_t>(std::min<int64_t>(n - 1, std::numeric_limits<index_t>::max()));
  constexpr int64_t kBlock = 1024;
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t stop = std::min(block + kBlock, end);
    unsigned_t bad = 0;
    for (int64_t p = block; p < stop; ++p) bad |= static_cast<unsigned_t>(idx[p]) > last;
    for (int64_t p = block; bad != 0 && p < stop; ++p) {
      if (static_cast<unsigned_t>(idx[p]) > last) return p;
    }
  }
  return end;
}

// The first position p in rows [first, last) where idx[p] is outside [0, n), or is not larger than
// the index before it in its row; ptr[last] if there is none.
template <class index_t>
int64_t first_bad_entry(const index_t* ptr, const index_t* idx, int64_t first, int64_t last,
                        int64_t n) {
  for (int64_t i = first; i < last; ++i) {
    index_t before = -1;
    for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) {
      if (idx[p] <= before || idx[p] >= n) return p;
      before = idx[p];
    }
  }
  return ptr[last];
}

// The first defect, as the reference of check_compressed describes it: its code, and its position.
struct Defect {
  int64_t code, position;
};

// Checks ptr (m + 1,) and idx (nse,) of a compressed structure with indices in [0, n). Both may be
// wrong: idx is read only after ptr has passed its checks. O(m + nse) time.
template <class index_t>
Defect check_compressed(const index_t* ptr, const index_t* idx, int64_t m, int64_t nse, int64_t n) {
  if (ptr[0] != 0) return {1, 0};
  for (int64_t i = 0; i < m; ++i) {
    if (ptr[i] > ptr[i + 1]) return {2, i};
  }
  if (ptr[m] != nse) return {3, m};
  const Chunks chunks(nse + m);
  List<int64_t> found(chunks.count());
  chunks.for_each([&](int64_t chunk, int64_t begin, int64_t end) {
    const int64_t first = chunk == 0 ? 0 : row_at_work(ptr, m, begin);
    const int64_t last = chunk + 1 == chunks.count() ? m : row_at_work(ptr, m, end);
    const int64_t p = first_bad_entry(ptr, idx, first, last, n);
    found[chunk] = p < ptr[last] ? p : nse;
  });
  const int64_t p = *std::min_element(found.begin(), found.end());
  if (p == nse) return {0, -1};
  return {idx[p] < 0 || idx[p] >= n ? 4 : 5, p};
}

Tensor check_compressed_op(const Tensor& ptr, const Tensor& idx, int64_t n) {
  check_view(ptr, idx, std::nullopt);
  Tensor out = empty(ptr, {2}, ScalarType::Long);
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    const Defect defect =
        check_compressed(data<index_t>(ptr), data<index_t>(idx), ptr.size(0) - 1, idx.size(0), n);
    mutable_data<int64_t>(out)[0] = defect.code;
    mutable_data<int64_t>(out)[1] = defect.position;
  });
  return out;
}

// The position of the first index outside of its dimension; -1 for none.
struct Outside {
  int64_t dim = -1, position = -1;
};

// Checks indices (d, nse), row-major and possibly wrong, against size (d,). Reports the first entry
// with a bad index, and the first bad dimension of this entry. O(d nse) time.
template <class index_t>
Outside first_outside(const index_t* indices, const int64_t* size, int64_t d,
                      const Chunks& chunks) {
  const int64_t nse = chunks.total();
  List<Outside> found(chunks.count());
  chunks.for_each([&](int64_t chunk, int64_t begin, int64_t end) {
    int64_t limit = end;
    for (int64_t dim = 0; dim < d; ++dim) {
      const int64_t p = first_outside(indices + dim * nse, begin, limit, size[dim]);
      if (p < limit) found[chunk] = {dim, p};
      limit = p;
    }
  });
  for (const Outside& first : found) {
    if (first.position >= 0) return first;
  }
  return {};
}

// True if the entries of indices (d, nse), row-major, ascend strictly in lexicographic order.
template <class index_t>
bool entries_ascend(const index_t* indices, int64_t d, const Chunks& chunks) {
  const int64_t nse = chunks.total();
  if (d == 2) {  // without a branch, so the compiler vectorises it
    const index_t *row = indices, *column = indices + nse;
    return ascends(chunks, [=](int64_t p) {
      return (row[p - 1] > row[p]) | ((row[p - 1] == row[p]) & (column[p - 1] >= column[p]));
    });
  }
  return ascends(chunks, [=](int64_t p) {
    int64_t dim = 0;
    while (dim < d && indices[dim * nse + p - 1] == indices[dim * nse + p]) ++dim;
    return dim == d || indices[dim * nse + p - 1] > indices[dim * nse + p];
  });
}

Tensor check_coo_op(const Tensor& indices, torch::headeronly::IntHeaderOnlyArrayRef size) {
  check_tensor(indices, 2, indices.scalar_type(), "indices");
  check_size(indices, 0, static_cast<int64_t>(size.size()), "indices");
  Tensor out = empty(indices, {3}, ScalarType::Long);
  dispatch_index(indices.scalar_type(), [&]<class index_t>() {
    const Chunks chunks(indices.size(1));
    const index_t* const rows = data<index_t>(indices);
    const Outside outside = first_outside(rows, size.data(), indices.size(0), chunks);
    int64_t* answer = mutable_data<int64_t>(out);
    answer[0] = outside.dim;
    answer[1] = outside.position;
    answer[2] = outside.position < 0 && entries_ascend(rows, indices.size(0), chunks);
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("check_compressed", SPGRAD_BOX(&check_compressed_op));
  m.impl("check_coo", SPGRAD_BOX(&check_coo_op));
}

}  // namespace spgrad
