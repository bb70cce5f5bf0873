// The inverse of a factorised matrix at the pattern of its factors, and that pattern.
#include <algorithm>
#include <tuple>
#include <vector>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "solves/division.h"
#include "solves/dtypes.h"

namespace spgrad {
namespace {

// z (nse): element (j, i) of Z = (L U)^-1 at every entry (i, j) of L + U, whose columns are sorted
// and do not repeat; (ptr, idx, val) has U with its diagonal and L without it, and
// (col_ptr, col_idx, place) the same entries by columns. Returns the first row in which the entries
// don't suffice, or -1.
//
// Takahashi, Fagan and Chen (1973): with U = D V and V, L of unit diagonal,
// Z = V^-1 D^-1 + Z (I - L) = D^-1 L^-1 + (I - V) Z. For j = m - 1 ... 0, with k > j:
//   Z[i,j] = -sum_k Z[i,k] L[k,j]    Z[j,i] = -sum_k V[j,k] Z[k,i]    i > j
//   Z[j,j] = 1 / D[j] - sum_k V[j,k] Z[k,j].
// Erisman and Tinney (1975): if (k, j) is in L and (j, i) in U, then (k, i) is in L + U, so no
// other element of Z is needed. One pass over the rest of row k for every entry (k, j) of L: O(sum
// of these) time, O(m) memory, one thread.
template <class index_t, class scalar_t>
int64_t invert(const index_t* ptr, const index_t* idx, const scalar_t* val, const index_t* col_ptr,
               const index_t* col_idx, const index_t* place, int64_t m, scalar_t* z) {
  const auto v = zeros<scalar_t>(m);     // row j of V
  const auto sum = zeros<scalar_t>(m);   // column j of Z
  const auto stamp = zeros<index_t>(m);  // j + 1 at the columns where row j of U has an entry
  for (int64_t j = m - 1; j >= 0; --j) {
    int64_t diagonal = -1, below = col_ptr[j + 1];
    for (int64_t p = col_ptr[j]; p < col_ptr[j + 1]; ++p) {
      if (col_idx[p] < j) continue;
      if (col_idx[p] != j) return j;
      diagonal = place[p];
      below = p + 1;
      break;
    }
    if (diagonal < 0) return j;
    const int64_t end = ptr[j + 1], width = end - diagonal - 1;
    const scalar_t pivot = divide(scalar_t(1), val[diagonal]);
    for (int64_t q = diagonal + 1; q < end; ++q) {
      v[idx[q]] = val[q] * pivot;
      sum[idx[q]] = scalar_t{};
      stamp[idx[q]] = static_cast<index_t>(j + 1);
    }
    for (int64_t p = below; p < col_ptr[j + 1]; ++p) {
      const int64_t k = col_idx[p], at = place[p], last = ptr[k + 1];
      const scalar_t l = val[at];
      scalar_t dot{};
      int64_t met = 0;
      for (int64_t q = at + 1; q < last; ++q) {
        const int64_t c = idx[q];
        if (stamp[c] != j + 1) continue;
        ++met;
        dot += v[c] * z[q];
        sum[c] += l * z[q];
      }
      if (met != width) return j;
      z[at] = scalar_t{} - dot;
    }
    scalar_t own{};
    for (int64_t q = diagonal + 1; q < end; ++q) {
      const int64_t c = idx[q];
      z[q] = scalar_t{} - sum[c];
      own += v[c] * z[q];
    }
    z[diagonal] = pivot - own;
  }
  return -1;
}

// Columns of every row of L + U where A = L U has the entries (ptr, idx), sorted, and the diagonal.
// Row i is a sorted list; each k < i in it adds the entries of row k right of its diagonal.
// O(sum of the rows that are added) time, O(m + nse of the factors) memory, one thread.
template <class index_t>
std::vector<index_t> fill(const index_t* ptr, const index_t* idx, int64_t m, index_t* found_ptr) {
  std::vector<index_t> found;
  const auto next = array<int64_t>(m + 1);
  const auto right =
      array<int64_t>(m);  // of each row that is done, its first entry past the diagonal
  found_ptr[0] = 0;
  for (int64_t i = 0; i < m; ++i) {
    int64_t end = m;  // next[m] is the first, and m ends the list
    next[m] = end;
    const auto insert = [&](int64_t before, int64_t c) {
      while (next[before] < c) before = next[before];
      if (next[before] != c) {
        next[c] = next[before];
        next[before] = c;
      }
      return c;
    };
    int64_t before = m;
    for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) before = insert(before, idx[p]);
    insert(m, i);
    for (int64_t k = next[m]; k < i; k = next[k]) {
      int64_t from = k;
      for (int64_t q = right[k]; q < found_ptr[k + 1]; ++q) from = insert(from, found[q]);
    }
    for (int64_t c = next[m]; c != end; c = next[c]) {
      found.push_back(static_cast<index_t>(c));
      if (c == i) right[i] = static_cast<int64_t>(found.size());
    }
    found_ptr[i + 1] = static_cast<index_t>(found.size());
  }
  return found;
}

std::tuple<Tensor, Tensor> selected_inverse(const Tensor& ptr, const Tensor& idx, const Tensor& val,
                                            const Tensor& col_ptr, const Tensor& col_idx,
                                            const Tensor& place) {
  check_view(ptr, idx, std::nullopt);
  check_view(col_ptr, col_idx, place);
  check_tensor(val, 1, val.scalar_type(), "val");
  check_size(val, 0, idx.size(0), "val");
  Tensor z = empty(val, {val.size(0)}), failed = empty(val, {1}, ScalarType::Long);
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    dispatch_solvable(val.scalar_type(), [&]<class scalar_t>() {
      *mutable_data<int64_t>(failed) = invert(
          data<index_t>(ptr), data<index_t>(idx), data<scalar_t>(val), data<index_t>(col_ptr),
          data<index_t>(col_idx), data<index_t>(place), ptr.size(0) - 1, mutable_data<scalar_t>(z));
    });
  });
  return {z, failed};
}

std::tuple<Tensor, Tensor> factor_pattern(const Tensor& ptr, const Tensor& idx) {
  check_view(ptr, idx, std::nullopt);
  Tensor found_ptr = empty(ptr, {ptr.size(0)}), found;
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    const auto columns = fill(data<index_t>(ptr), data<index_t>(idx), ptr.size(0) - 1,
                              mutable_data<index_t>(found_ptr));
    found = empty(ptr, {static_cast<int64_t>(columns.size())});
    std::copy(columns.begin(), columns.end(), mutable_data<index_t>(found));
  });
  return {found_ptr, found};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("selected_inverse", SPGRAD_BOX(&selected_inverse));
  m.impl("factor_pattern", SPGRAD_BOX(&factor_pattern));
}

}  // namespace spgrad
