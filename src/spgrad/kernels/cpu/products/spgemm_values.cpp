// The values of a product of sparse matrices on a known pattern, and the masked product.
#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/targets.h"
#include "products/gustavson/rows.h"

namespace spgrad {
namespace {

// Row i of A @ B at the columns of row i of c. `sum` (n,) need not be zero: only the columns of c
// are cleared and read, so products outside c have no effect.
template <class index_t, class scalar_t>
SPGRAD_INLINE void value_row(const Rows<index_t>& c, const Matrix<index_t, scalar_t>& a,
                             const Matrix<index_t, scalar_t>& b, int64_t i,
                             accumulate_t<scalar_t>* sum, scalar_t* out) {
  for (int64_t q = c.ptr[i]; q < c.ptr[i + 1]; ++q) sum[c.idx[q]] = {};
  for (int64_t p = a.ptr[i]; p < a.ptr[i + 1]; ++p) {
    b.prefetch(a, p, b.val);
    const auto factor = a.val[p];
    for (int64_t q = b.ptr[a.idx[p]]; q < b.ptr[a.idx[p] + 1]; ++q) {
      sum[b.idx[q]] += factor * b.val[q];
    }
  }
  for (int64_t q = c.ptr[i]; q < c.ptr[i + 1]; ++q) out[q] = narrow<scalar_t>(sum[c.idx[q]]);
}

// The values (nse of c,) of A (m, k) @ B (k, n) on a pattern c (m, n) whose columns are distinct in
// each row. In A and B columns may repeat and have any order. A sum runs over the row of A, then
// over the rows of B, in storage order, for any number of threads. O(products + nse of c) time;
// memory for n sums a thread, and for widened or permuted values.
Tensor spgemm_values_op(const Tensor& ptr_c, const Tensor& idx_c, const Tensor& ptr_a,
                        const Tensor& idx_a, const std::optional<Tensor>& perm_a,
                        const Tensor& val_a, const Tensor& ptr_b, const Tensor& idx_b,
                        const std::optional<Tensor>& perm_b, const Tensor& val_b, int64_t n) {
  const ScalarType index = ptr_c.scalar_type(), value = val_a.scalar_type();
  check_view(ptr_c, idx_c, std::nullopt);
  check_view(ptr_a, idx_a, perm_a);
  check_view(ptr_b, idx_b, perm_b);
  check_tensor(ptr_a, 1, index, "ptr_a");
  check_tensor(ptr_b, 1, index, "ptr_b");
  check_size(ptr_a, 0, ptr_c.size(0), "ptr_a");
  check_values(val_a, idx_a, value, "val_a");
  check_values(val_b, idx_b, value, "val_b");
  Tensor val_c = empty(val_a, {idx_c.size(0)});
  dispatch(index, value, [&]<class index_t, class scalar_t>() {
    using sum_t = accumulate_t<scalar_t>;
    const Rows<index_t> c(ptr_c, idx_c);
    const Matrix<index_t, scalar_t> a(ptr_a, idx_a, perm_a, val_a), b(ptr_b, idx_b, perm_b, val_b);
    const RowSplit<index_t> split(a, b);
    const Array<sum_t> sums = zeros<sum_t>(split.count() * n);
    scalar_t* out = mutable_data<scalar_t>(val_c);
    split.for_each([&](int64_t chunk, int64_t first, int64_t last) {
      // with_vectors, as in spgemm: with the same fused multiply-adds, both round their sums
      // alike.
      with_vectors([&]<int kBytes>() {
        for (int64_t i = first; i < last; ++i) value_row(c, a, b, i, sums.get() + chunk * n, out);
      });
    });
  });
  return val_c;
}

template <class T>
SPGRAD_INLINE bool is_nan(T value) {
  return value != value;
}
template <class T>
SPGRAD_INLINE bool is_nan(Complex<T> value) {
  return is_nan(value.re) || is_nan(value.im);
}

// Row i of C as a dense vector, for dot products with rows of B. Where C has no entry, the vector
// is zero, which is exact as long as B is finite. An infinity in B times such a zero gives NaN; the
// sum is then formed again over the entries of C alone.
template <class index_t, class scalar_t>
struct MaskedRow {
  using sum_t = accumulate_t<scalar_t>;

  const Matrix<index_t, scalar_t>&c, &b;
  sum_t* dense;   // (n,), zero between rows
  char* present;  // (n,), zero between rows; set where C has entries after the first NaN of a row
  int64_t i;
  bool marked = false;

  void scatter() {
    for (int64_t p = c.ptr[i]; p < c.ptr[i + 1]; ++p) dense[c.idx[p]] += c.val[p];
  }

  void clear() {
    for (int64_t p = c.ptr[i]; p < c.ptr[i + 1]; ++p) dense[c.idx[p]] = {};
    mark(false);
  }

  void mark(bool flag) {
    if (marked == flag) return;
    for (int64_t p = c.ptr[i]; p < c.ptr[i + 1]; ++p) present[c.idx[p]] = flag;
    marked = flag;
  }

  sum_t dot(int64_t j) {
    sum_t sum{};
    for (int64_t q = b.ptr[j]; q < b.ptr[j + 1]; ++q) sum += dense[b.idx[q]] * b.val[q];
    if (!is_nan(sum)) return sum;
    mark(true);
    sum = {};
    for (int64_t q = b.ptr[j]; q < b.ptr[j + 1]; ++q) {
      if (present[b.idx[q]]) sum += dense[b.idx[q]] * b.val[q];
    }
    return sum;
  }
};

// out (nse of the mask,): for entry p = (i, j) of the mask (m, k), out[perm[p]] is the product of
// row i of C (m, n) and row j of B (k, n) over the columns that both have. Repeated entries of C
// and B are added up; repeated entries of the mask each get the whole sum. Entries may have any
// order. O(products that the mask selects + nse of C) time; memory for n sums and n bytes a thread,
// and for widened or permuted values. One thread forms each sum, in the order of the row of B.
Tensor masked_spgemm_op(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
                        const Tensor& ptr_c, const Tensor& idx_c,
                        const std::optional<Tensor>& perm_c, const Tensor& val_c,
                        const Tensor& ptr_b, const Tensor& idx_b,
                        const std::optional<Tensor>& perm_b, const Tensor& val_b, int64_t n) {
  const ScalarType index = ptr.scalar_type(), value = val_c.scalar_type();
  check_view(ptr, idx, perm);
  check_view(ptr_c, idx_c, perm_c);
  check_view(ptr_b, idx_b, perm_b);
  check_tensor(ptr_c, 1, index, "ptr_c");
  check_tensor(ptr_b, 1, index, "ptr_b");
  check_size(ptr_c, 0, ptr.size(0), "ptr_c");
  check_values(val_c, idx_c, value, "val_c");
  check_values(val_b, idx_b, value, "val_b");
  Tensor out = empty(val_c, {idx.size(0)});
  dispatch(index, value, [&]<class index_t, class scalar_t>() {
    const Rows<index_t> mask(ptr, idx);
    const Matrix<index_t, scalar_t> c(ptr_c, idx_c, perm_c, val_c), b(ptr_b, idx_b, perm_b, val_b);
    const RowSplit<index_t> split(mask, b);
    const Array<accumulate_t<scalar_t>> dense = zeros<accumulate_t<scalar_t>>(split.count() * n);
    const Array<char> present = zeros<char>(split.count() * n);
    const index_t* order = data<index_t>(perm);
    scalar_t* values = mutable_data<scalar_t>(out);
    split.for_each([&](int64_t chunk, int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        if (mask.length(i) == 0) continue;
        MaskedRow<index_t, scalar_t> row{.c = c,
                                         .b = b,
                                         .dense = dense.get() + chunk * n,
                                         .present = present.get() + chunk * n,
                                         .i = i};
        row.scatter();
        for (int64_t p = mask.ptr[i]; p < mask.ptr[i + 1]; ++p) {
          b.prefetch(mask, p, b.val);
          values[order ? order[p] : p] = narrow<scalar_t>(row.dot(mask.idx[p]));
        }
        row.clear();
      }
    });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("spgemm_values", SPGRAD_BOX(&spgemm_values_op));
  m.impl("masked_spgemm", SPGRAD_BOX(&masked_spgemm_op));
}

}  // namespace spgrad
