// Factorisations that keep the pattern of the matrix: IC(0) and ILU(0), and their relaxed forms.
#include <cmath>
#include <tuple>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "solves/division.h"
#include "solves/dtypes.h"

namespace spgrad {
namespace {

template <class T>
SPGRAD_INLINE T conjugate(T a) {
  return a;
}
template <class T>
SPGRAD_INLINE Complex<T> conjugate(Complex<T> a) {
  return {a.re, -a.im};
}
template <class T>
SPGRAD_INLINE T real_part(T a) {
  return a;
}
template <class T>
SPGRAD_INLINE T real_part(Complex<T> a) {
  return a.re;
}

// l (nse): the factor of the lower triangle (ptr, idx, val), whose columns are sorted and do not
// repeat. Returns the first row whose pivot is missing or not positive, or -1. Works row by row,
// with row i as a dense vector of m elements: each entry (i, j) takes one pass over row j. O(sum of
// the lengths of the rows that the entries name) time, O(m) memory, one thread.
template <class index_t, class scalar_t>
int64_t factor_cholesky(const index_t* ptr, const index_t* idx, const scalar_t* val, int64_t m,
                        scalar_t* l) {
  const auto spread = zeros<scalar_t>(m);
  for (int64_t i = 0; i < m; ++i) {
    const int64_t begin = ptr[i], last = static_cast<int64_t>(ptr[i + 1]) - 1;
    if (last < begin || idx[last] != i) return i;
    for (int64_t p = begin; p < last; ++p) {
      const int64_t j = idx[p], end = static_cast<int64_t>(ptr[j + 1]) - 1;
      scalar_t sum{};
      for (int64_t q = ptr[j]; q < end; ++q) sum += spread[idx[q]] * conjugate(l[q]);
      l[p] = spread[j] = divide(val[p] - sum, l[end]);
    }
    auto pivot = real_part(val[last]);
    for (int64_t p = begin; p < last; ++p) {
      pivot -= real_part(l[p] * conjugate(l[p]));
      spread[idx[p]] = scalar_t{};
    }
    if (!(pivot > 0)) return i;
    l[last] = scalar_t(std::sqrt(pivot));
  }
  return -1;
}

// l (nse): the factor of the lower triangle, whose columns are (ptr, idx, val), with sorted rows
// that do not repeat. The product of two entries (i, k) and (j, k) belongs at (i, j). Where the
// triangle has no such entry, `relaxation` times the product moves to the diagonal elements i and
// j. Returns the first column whose pivot is missing or not positive, or -1. Works column by
// column: the columns that have an entry in row k form a list. O(sum of the squared lengths of the
// columns) time, O(m) memory, one thread.
template <class index_t, class scalar_t>
int64_t factor_relaxed(const index_t* ptr, const index_t* idx, const scalar_t* val, int64_t m,
                       double relaxation, scalar_t* l) {
  using Real = decltype(real_part(scalar_t{}));
  const auto place = zeros<index_t>(m);  // 1 + the position of the entry of column k in this row
  const auto lost = zeros<Real>(m);      // the products that each diagonal element takes
  const auto list = zeros<index_t>(m);   // 1 + the first column whose next entry is in this row
  const auto behind = array<index_t>(m), next = array<index_t>(m);  // of a column: list, next entry
  const auto enlist = [&](int64_t column, int64_t entry) {
    if (entry == ptr[column + 1]) return;
    next[column] = static_cast<index_t>(entry);
    behind[column] = list[idx[entry]];
    list[idx[entry]] = static_cast<index_t>(column + 1);
  };
  for (int64_t k = 0; k < m; ++k) {
    const int64_t begin = ptr[k], end = ptr[k + 1];
    if (begin == end || idx[begin] != k) return k;
    for (int64_t p = begin; p < end; ++p) {
      place[idx[p]] = static_cast<index_t>(p + 1);
      l[p] = val[p];
    }
    for (int64_t above = list[k]; above != 0;) {
      const int64_t column = above - 1, first = next[column];
      const scalar_t factor = conjugate(l[first]);
      for (int64_t q = first; q < ptr[column + 1]; ++q) {
        const int64_t row = idx[q], at = place[row];
        const scalar_t product = l[q] * factor;
        if (at != 0) {
          l[at - 1] = l[at - 1] - product;
        } else {
          lost[k] += real_part(product);
          lost[row] += real_part(product);
        }
      }
      above = behind[column];
      enlist(column, first + 1);
    }
    const auto pivot = real_part(l[begin]) - static_cast<Real>(relaxation) * lost[k];
    for (int64_t p = begin; p < end; ++p) place[idx[p]] = 0;
    if (!(pivot > 0)) return k;
    l[begin] = scalar_t(std::sqrt(pivot));
    for (int64_t p = begin + 1; p < end; ++p) l[p] = divide(l[p], l[begin]);
    enlist(k, begin + 1);
  }
  return -1;
}

// lu (nse): the factors of (ptr, idx, val), whose columns are sorted and do not repeat. The
// diagonal element of a row takes `relaxation` times what belongs where the row has no entry.
// Returns the first row whose pivot is missing or zero, or -1. Works row by row; `place` has the
// positions of the entries of row i. O(sum of the lengths of the rows that the entries left of the
// diagonal name) time, O(m) memory, one thread.
template <class index_t, class scalar_t>
int64_t factor_lu(const index_t* ptr, const index_t* idx, const scalar_t* val, int64_t m,
                  double relaxation, scalar_t* lu) {
  using Real = decltype(real_part(scalar_t{}));
  const auto place = zeros<index_t>(m);     // 1 + the position of the entry of row i in this column
  const auto diagonal = array<index_t>(m);  // of each row that is done
  for (int64_t i = 0; i < m; ++i) {
    const int64_t begin = ptr[i], end = ptr[i + 1];
    for (int64_t p = begin; p < end; ++p) {
      place[idx[p]] = static_cast<index_t>(p + 1);
      lu[p] = val[p];
    }
    int64_t p = begin;
    scalar_t lost{};
    for (; p < end && idx[p] < i; ++p) {
      const int64_t k = idx[p], pivot = diagonal[k];
      const scalar_t factor = lu[p] = divide(lu[p], lu[pivot]);
      for (int64_t q = pivot + 1; q < ptr[k + 1]; ++q) {
        const int64_t at = place[idx[q]];
        if (at != 0) {
          lu[at - 1] = lu[at - 1] - factor * lu[q];
        } else if (relaxation != 0) {
          lost += factor * lu[q];
        }
      }
    }
    for (int64_t q = begin; q < end; ++q) place[idx[q]] = 0;
    if (p == end || idx[p] != i) return i;
    if (relaxation != 0) lu[p] = lu[p] - scalar_t(static_cast<Real>(relaxation)) * lost;
    if (is_zero(lu[p])) return i;
    diagonal[i] = static_cast<index_t>(p);
  }
  return -1;
}

template <class Factor>
std::tuple<Tensor, Tensor> factored(const Tensor& ptr, const Tensor& idx, const Tensor& val,
                                    const Factor& factor) {
  check_view(ptr, idx, std::nullopt);
  check_tensor(val, 1, val.scalar_type(), "val");
  check_size(val, 0, idx.size(0), "val");
  Tensor found = empty(val, {val.size(0)}), failed = empty(val, {1}, ScalarType::Long);
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    dispatch_solvable(val.scalar_type(), [&]<class scalar_t>() {
      *mutable_data<int64_t>(failed) =
          factor(data<index_t>(ptr), data<index_t>(idx), data<scalar_t>(val), ptr.size(0) - 1,
                 mutable_data<scalar_t>(found));
    });
  });
  return {found, failed};
}

std::tuple<Tensor, Tensor> incomplete_cholesky(const Tensor& ptr, const Tensor& idx,
                                               const Tensor& val) {
  return factored(ptr, idx, val, [](auto... a) { return factor_cholesky(a...); });
}

std::tuple<Tensor, Tensor> relaxed_cholesky(const Tensor& ptr, const Tensor& idx, const Tensor& val,
                                            double relaxation) {
  return factored(ptr, idx, val, [&](auto ptr, auto idx, auto val, int64_t m, auto l) {
    return factor_relaxed(ptr, idx, val, m, relaxation, l);
  });
}

std::tuple<Tensor, Tensor> incomplete_lu(const Tensor& ptr, const Tensor& idx, const Tensor& val,
                                         double relaxation) {
  return factored(ptr, idx, val, [&](auto ptr, auto idx, auto val, int64_t m, auto lu) {
    return factor_lu(ptr, idx, val, m, relaxation, lu);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("incomplete_cholesky", SPGRAD_BOX(&incomplete_cholesky));
  m.impl("incomplete_lu", SPGRAD_BOX(&incomplete_lu));
  m.impl("relaxed_cholesky", SPGRAD_BOX(&relaxed_cholesky));
}

}  // namespace spgrad
