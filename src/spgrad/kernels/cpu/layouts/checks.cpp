// Kernels that check, build and expand index structures.
#include <limits>
#include <tuple>
#include <utility>

#include "common/dispatch.h"
#include "common/payload.h"
#include "layouts/histogram.h"

namespace spgrad {
namespace {

// ---- checks ----------------------------------------------------------------------------------

// First position in [begin, end) where idx lies outside [0, n), else `end`. Looks at blocks without
// branching, so that the compiler vectorises the common case of nothing to find.
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

// First position p in rows [first, last) where idx[p] lies outside [0, n) or not above the entry
// before it in its row, else ptr[last].
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

struct Defect {
  int64_t code, position;
};

// Checks ptr (m + 1,) and idx (nse,) of a compressed structure with indices in [0, n). Neither is
// trusted: idx is read only once ptr is known to be sound. O(m + nse) time.
template <class index_t>
Defect check_compressed(const index_t* ptr, const index_t* idx, int64_t m, int64_t nse, int64_t n) {
  if (ptr[0] != 0) return {1, 0};
  for (int64_t i = 0; i < m; ++i) {
    if (ptr[i] > ptr[i + 1]) return {2, i};
  }
  if (ptr[m] != nse) return {3, m};
  const Chunks chunks(nse + m);
  List<int64_t> found(chunks.count());
  chunks.for_each([&](int64_t c, int64_t begin, int64_t end) {
    const int64_t first = c == 0 ? 0 : row_at_work(ptr, m, begin);
    const int64_t last = c + 1 == chunks.count() ? m : row_at_work(ptr, m, end);
    const int64_t p = first_bad_entry(ptr, idx, first, last, n);
    found[c] = p < ptr[last] ? p : nse;
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

// Whether entry p comes before entry p + 1 in lexicographic order, for all p in [begin, end).
// indices is (d, nse), row-major.
template <class index_t>
bool increasing(const index_t* indices, int64_t d, int64_t nse, int64_t begin, int64_t end) {
  for (int64_t p = begin; p < end; ++p) {
    int64_t dim = 0;
    while (dim < d && indices[dim * nse + p] == indices[dim * nse + p + 1]) ++dim;
    if (dim == d || indices[dim * nse + p] > indices[dim * nse + p + 1]) return false;
  }
  return true;
}

struct CooState {
  int64_t dim = -1, position = -1;
  bool sorted = true;
};

// Checks indices (d, nse), row-major and not trusted, against size (d,). The first bad position
// wins, and of that entry the first bad dimension. O(d nse) time.
template <class index_t>
CooState check_coo(const index_t* indices, const int64_t* size, int64_t d, int64_t nse) {
  const Chunks chunks(nse);
  List<CooState> found(chunks.count());
  chunks.for_each([&](int64_t c, int64_t begin, int64_t end) {
    CooState& state = found[c];
    int64_t limit = end;
    for (int64_t dim = 0; dim < d; ++dim) {
      const int64_t p = first_outside(indices + dim * nse, begin, limit, size[dim]);
      if (p < limit) state = {dim, p, false};
      limit = p;
    }
    state.sorted = state.sorted && increasing(indices, d, nse, begin, std::min(end, nse - 1));
  });
  CooState result;
  for (const CooState& state : found) {
    if (result.position < 0 && state.position >= 0) result = state;
    result.sorted = result.sorted && state.sorted;
  }
  return result;
}

Tensor check_coo_op(const Tensor& indices, torch::headeronly::IntHeaderOnlyArrayRef size) {
  check_tensor(indices, 2, indices.scalar_type(), "indices");
  check_size(indices, 0, static_cast<int64_t>(size.size()), "indices");
  Tensor out = empty(indices, {3}, ScalarType::Long);
  dispatch_index(indices.scalar_type(), [&]<class index_t>() {
    const CooState state =
        check_coo(data<index_t>(indices), size.data(), indices.size(0), indices.size(1));
    int64_t* answer = mutable_data<int64_t>(out);
    answer[0] = state.dim;
    answer[1] = state.position;
    answer[2] = state.sorted;
  });
  return out;
}

// ---- counting --------------------------------------------------------------------------------

// ptr (m + 1,) from row (nse,), if that ascends: the last entry of a row says where the row ends,
// and no count waits for the one before. False, and ptr is of no use, if it does not. Serial.
template <class index_t>
bool compress_sorted(const index_t* row, int64_t nse, int64_t m, index_t* ptr) {
  constexpr int64_t kBlock = 4096;
  std::fill_n(ptr, m + 1, index_t{0});
  index_t before = 0;
  for (int64_t block = 0; block < nse; block += kBlock) {
    bool ascends = true;
    for (int64_t p = block; p < std::min(block + kBlock, nse); ++p) {
      ascends &= row[p] >= before;
      before = row[p];
      ptr[before + 1] = static_cast<index_t>(p + 1);
    }
    if (!ascends) return false;
  }
  for (int64_t i = 0; i < m; ++i) ptr[i + 1] = std::max(ptr[i], ptr[i + 1]);
  return true;
}

// ptr (m + 1,) preallocated; row (nse,) in any order. O(m + nse) time.
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

// Row numbers, and beside them the columns `idx` (nse) unless these are null: out (nse) or (2,
// nse), preallocated; ptr[m] is nse. O(m + nse) time.
template <class index_t>
void expand(const index_t* ptr, int64_t m, int64_t nse, const index_t* idx, index_t* out) {
  STD_TORCH_CHECK(ptr[m] == nse, "spgrad: `ptr` counts ", ptr[m], " entries, not ", nse, ".");
  parallel_rows(ptr, m, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      std::fill(out + ptr[i], out + ptr[i + 1], static_cast<index_t>(i));
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

// ---- blocks ----------------------------------------------------------------------------------

template <class index_t, class Payload>
struct BlockView {
  const index_t *ptr, *idx;    // (M + 1,), (nb,)
  int64_t along, across;       // lines of a block, elements of a line
  bool transposed;             // values lie element by element, not line by line
  index_t *out_ptr, *out_idx;  // (M * along + 1,), (nb * along * across,)
  Payload payload;             // as long as out_idx

  // Writes the lines of block lines [first, last).
  void expand(int64_t first, int64_t last) const {
    switch (across) {  // short loops of a known length need no branch
      case 2:
        return expand<2>(first, last);
      case 4:
        return expand<4>(first, last);
      default:
        return expand<0>(first, last);
    }
  }

 private:
  template <int64_t kAcross>
  SPGRAD_INLINE void expand(int64_t first, int64_t last) const {
    const int64_t across = kAcross == 0 ? this->across : kAcross;
    const int64_t line_step = transposed ? 1 : across, element_step = transposed ? along : 1;
    for (int64_t I = first; I < last; ++I) {
      int64_t q = int64_t{ptr[I]} * along * across;
      for (int64_t c = 0; c < along; ++c) {
        out_ptr[I * along + c] = static_cast<index_t>(q);
        for (int64_t p = ptr[I]; p < ptr[I + 1]; ++p) {
          const int64_t value = p * along * across + c * line_step;
          for (int64_t r = 0; r < across; ++r, ++q) {
            out_idx[q] = static_cast<index_t>(int64_t{idx[p]} * across + r);
            payload.place(q, value + r * element_step);
          }
        }
      }
    }
  }
};

// The scalar view of a matrix of nb blocks: see BlockView. val is null, or holds all elements of
// the blocks. O(M * along + nb * along * across) time; nothing but the result is allocated.
std::tuple<Tensor, Tensor, Tensor> expand_blocks_op(const Tensor& ptr, const Tensor& idx,
                                                    int64_t along, int64_t across, bool transposed,
                                                    const std::optional<Tensor>& val) {
  check_view(ptr, idx, std::nullopt);
  const int64_t block_lines = ptr.size(0) - 1, nse = idx.size(0) * along * across;
  check_fits(ptr.scalar_type(), nse);
  check_payload(val, nse);
  Tensor out_ptr = empty(ptr, {block_lines * along + 1}), out_idx = empty(ptr, {nse});
  Tensor moved = empty_payload(val, ptr, nse);
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    dispatch_payload<index_t>(val, moved, [&](auto payload) {
      const BlockView<index_t, decltype(payload)> blocks{data<index_t>(ptr),
                                                         data<index_t>(idx),
                                                         along,
                                                         across,
                                                         transposed,
                                                         mutable_data<index_t>(out_ptr),
                                                         mutable_data<index_t>(out_idx),
                                                         payload};
      parallel_rows(blocks.ptr, block_lines, along * across,
                    [&](int64_t first, int64_t last) { blocks.expand(first, last); });
      blocks.out_ptr[block_lines * along] = static_cast<index_t>(nse);
    });
  });
  return {out_ptr, out_idx, moved};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("check_compressed", SPGRAD_BOX(&check_compressed_op));
  m.impl("check_coo", SPGRAD_BOX(&check_coo_op));
  m.impl("compress", SPGRAD_BOX(&compress_op));
  m.impl("coordinates", SPGRAD_BOX(&coordinates_op));
  m.impl("expand", SPGRAD_BOX(&expand_op));
  m.impl("expand_blocks", SPGRAD_BOX(&expand_blocks_op));
}

}  // namespace spgrad
