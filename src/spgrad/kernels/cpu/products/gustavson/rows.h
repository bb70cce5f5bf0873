// Operands of sparse times sparse, and the split of the work. All kernels go row by row (Gustavson
// 1978, "Two fast algorithms for sparse matrices"): row i of A @ B is a weighted sum of the rows of
// B that the columns of row i of A name.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "common/arguments.h"
#include "common/dtypes.h"
#include "common/memory.h"
#include "common/threads.h"

namespace spgrad {

template <class index_t>
struct Rows {
  const index_t *ptr, *idx;
  int64_t count;

  Rows(const Tensor& ptr_of, const Tensor& idx_of)
      : ptr(data<index_t>(ptr_of)), idx(data<index_t>(idx_of)), count(ptr_of.size(0) - 1) {}

  int64_t length(int64_t i) const { return int64_t{ptr[i + 1]} - ptr[i]; }

  // Prefetches the data that entries of `a` after p will read. The row that belongs to a column of
  // `a` may be anywhere in memory, and the loop would wait for its pointer, its indices and its
  // values, one after the other.
  template <class... T>
  SPGRAD_INLINE void prefetch(const Rows& a, int64_t p, const T*... val) const {
    const int64_t last = a.ptr[a.count] - 1;
    __builtin_prefetch(ptr + a.idx[std::min(p + 2 * kAhead, last)]);
    const int64_t start = ptr[a.idx[std::min(p + kAhead, last)]];
    __builtin_prefetch(idx + start);
    (__builtin_prefetch(val + start), ...);
  }

 private:
  static constexpr int64_t kAhead = 8;
};

// A row view with its values, in the type of the sums and in the order of the view. Values of
// another type or order are copied: the inner loop reads a row of B once for every entry of A in
// the column that names it, and reads a contiguous row faster.
template <class index_t, class scalar_t>
struct Matrix : Rows<index_t> {
  using sum_t = accumulate_t<scalar_t>;

  Array<sum_t> copy;
  const sum_t* val;

  Matrix(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
         const Tensor& values)
      : Rows<index_t>(ptr, idx) {
    constexpr bool kSameBits = sizeof(scalar_t) == sizeof(sum_t);  // integers: modulo 2^bits
    val = static_cast<const sum_t*>(values.const_data_ptr());
    if (kSameBits && !perm) return;
    const int64_t nse = idx.size(0);
    copy = array<sum_t>(nse);
    val = copy.get();
    const scalar_t* from = data<scalar_t>(values);
    const index_t* order = data<index_t>(perm);
    Chunks(nse).for_each([&](int64_t, int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) copy[p] = widen(from[order ? order[p] : p]);
    });
  }
};

inline void check_values(const Tensor& val, const Tensor& idx, ScalarType dtype, const char* name) {
  check_tensor(val, 1, dtype, name);
  check_size(val, 0, idx.size(0), name);
}

// Ranges of rows of a with equal shares of the products. A row of a has a product for each entry of
// the rows of b that it names.
template <class index_t>
class RowSplit {
 public:
  RowSplit(const Rows<index_t>& a, const Rows<index_t>& b)
      : rows_(a.count), work_(starts(a, b)), chunks_(work_.back() + rows_) {}

  int64_t count() const { return chunks_.count(); }

  // Calls f(chunk, first_row, last_row), in parallel. f must not throw.
  template <class F>
  void for_each(const F& f) const {
    chunks_.for_each([&](int64_t chunk, int64_t begin, int64_t end) {
      const int64_t first = chunk == 0 ? 0 : row_at_work(work_.data(), rows_, begin);
      const int64_t last = chunk + 1 == count() ? rows_ : row_at_work(work_.data(), rows_, end);
      f(chunk, first, last);
    });
  }

 private:
  // The number of products before each row; only {0} if one thread takes all rows.
  static List<int64_t> starts(const Rows<index_t>& a, const Rows<index_t>& b) {
    if (torch::stable::get_num_threads() == 1) return {0};
    List<int64_t> work(a.count + 1);
    parallel_rows(a.ptr, a.count, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        int64_t products = a.length(i);
        for (int64_t p = a.ptr[i]; p < a.ptr[i + 1]; ++p) products += b.length(a.idx[p]);
        work[i + 1] = products;
      }
    });
    for (int64_t i = 0; i < a.count; ++i) work[i + 1] += work[i];
    return work;
  }

  int64_t rows_;
  List<int64_t> work_;
  Chunks chunks_;
};

}  // namespace spgrad
