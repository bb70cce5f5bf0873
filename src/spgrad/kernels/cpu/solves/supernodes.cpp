// The supernodes of the factors of a matrix: columns that are next to each other and have nearly
// the same rows below them.
#include <algorithm>
#include <limits>
#include <tuple>

#include "common/arguments.h"
#include "common/dispatch.h"

namespace spgrad {
namespace {

constexpr int64_t kWidest = 64;  // columns of a supernode
constexpr int64_t kGather = 6;   // the time to gather an element over the time to multiply by it

template <class index_t>
constexpr int64_t kMost = std::numeric_limits<index_t>::max();

// The rows of U, computed from its columns, without the diagonal.
template <class index_t>
void transpose(const index_t* ptr, const index_t* idx, int64_t m, index_t* row_ptr,
               index_t* columns) {
  std::fill(row_ptr, row_ptr + m + 1, index_t(0));
  for (int64_t c = 0; c < m; ++c) {
    for (int64_t p = ptr[c]; p < ptr[c + 1]; ++p) row_ptr[idx[p] + 1] += idx[p] < c;
  }
  for (int64_t i = 0; i < m; ++i) row_ptr[i + 1] += row_ptr[i];
  const auto next = array<index_t>(m);
  std::copy(row_ptr, row_ptr + m, next.get());
  for (int64_t c = 0; c < m; ++c) {
    for (int64_t p = ptr[c]; p < ptr[c + 1]; ++p) {
      if (idx[p] < c) columns[next[idx[p]]++] = static_cast<index_t>(c);
    }
  }
}

template <class index_t>
struct Supernodes {
  List<index_t> start, row_ptr, rows;  // row_ptr[s] is where the rows below supernode s begin
  int64_t elements = 0;                // in all columns and rows, each diagonal block once
  bool complete = true;                // false if there would be more than the limit
};

// The rows of column j are its rows in L and U^T, and the rows of each earlier column whose first
// row below the diagonal is j: the pattern of the factors of a matrix with a symmetric pattern
// (Liu, 1990). A column joins the supernode of the column before it under two conditions: the first
// row below the diagonal of the column before is this column, and the time of the inverse does not
// increase. A supernode of w columns and r rows takes the time r^2 (kGather + w). O(nse of the
// factors + rows of all supernodes) time and memory.
template <class index_t>
Supernodes<index_t> find_supernodes(const index_t* l_ptr, const index_t* l_idx,
                                    const index_t* u_ptr, const index_t* u_idx, int64_t m,
                                    int64_t limit) {
  Supernodes<index_t> found;
  const auto row_ptr = array<index_t>(m + 1), columns = array<index_t>(u_ptr[m]);
  transpose(u_ptr, u_idx, m, row_ptr.get(), columns.get());
  const auto stamp = zeros<index_t>(m);  // j + 1 if row i is a row of column j
  const auto child = zeros<index_t>(m);  // 1 + the last supernode with this first row, or 0
  List<index_t> sibling;                 // 1 + the one before with the same first row, or 0
  List<index_t> open, list;              // rows below the column before; rows of this column
  int64_t first = 0;                     // column of the open supernode
  const auto close = [&](int64_t end) {
    std::sort(open.begin(), open.end());
    const int64_t width = end - first, r = open.size();
    found.elements += width * (width + 2 * r);
    found.complete =
        found.elements <= limit && static_cast<int64_t>(found.rows.size()) + r <= kMost<index_t>;
    found.start.push_back(static_cast<index_t>(end));
    found.rows.insert(found.rows.end(), open.begin(), open.end());
    found.row_ptr.push_back(static_cast<index_t>(found.rows.size()));
    sibling.push_back(r > 0 ? child[open[0]] : index_t(0));
    if (r > 0) child[open[0]] = static_cast<index_t>(sibling.size());
  };
  found.start.push_back(0);
  found.row_ptr.push_back(0);
  for (int64_t j = 0; j < m && found.complete; ++j) {
    const auto own = static_cast<index_t>(j + 1);
    list.clear();
    const auto add = [&](const index_t* from, const index_t* to) {
      for (; from < to; ++from) {
        if (*from <= j || stamp[*from] == own) continue;
        stamp[*from] = own;
        list.push_back(*from);
      }
    };
    const int64_t before = open.size();
    const bool follows = before > 0 && *std::min_element(open.begin(), open.end()) == j;
    if (follows) add(open.data(), open.data() + before);
    add(l_idx + l_ptr[j], l_idx + l_ptr[j + 1]);
    add(columns.get() + row_ptr[j], columns.get() + row_ptr[j + 1]);
    for (int64_t s = child[j]; s > 0; s = sibling[s - 1]) {
      add(found.rows.data() + found.row_ptr[s - 1], found.rows.data() + found.row_ptr[s]);
    }
    const int64_t width = j - first, now = list.size();
    if (j > 0 && !(follows && width < kWidest &&
                   width * (now * now - (before - 1) * (before - 1)) <=
                       kGather * (before - 1) * (before - 1))) {
      close(j);
      first = j;
    }
    open.swap(list);
  }
  if (m > 0 && found.complete) close(m);
  return found;
}

template <class index_t>
Tensor as_tensor(const Tensor& like, const List<index_t>& from) {
  Tensor out = empty(like, {static_cast<int64_t>(from.size())});
  std::copy(from.begin(), from.end(), mutable_data<index_t>(out));
  return out;
}

std::tuple<Tensor, Tensor, Tensor> supernodes(const Tensor& l_ptr, const Tensor& l_idx,
                                              const Tensor& u_ptr, const Tensor& u_idx,
                                              int64_t limit) {
  check_view(l_ptr, l_idx, std::nullopt);
  check_view(u_ptr, u_idx, std::nullopt);
  check_tensor(u_ptr, 1, l_ptr.scalar_type(), "u_ptr");
  check_size(u_ptr, 0, l_ptr.size(0), "u_ptr");
  Tensor start, row_ptr, rows;
  dispatch_index(l_ptr.scalar_type(), [&]<class index_t>() {
    auto found = find_supernodes(data<index_t>(l_ptr), data<index_t>(l_idx), data<index_t>(u_ptr),
                                 data<index_t>(u_idx), l_ptr.size(0) - 1, limit);
    if (!found.complete) found = {{0}, {0}, {}};
    start = as_tensor(l_ptr, found.start);
    row_ptr = as_tensor(l_ptr, found.row_ptr);
    rows = as_tensor(l_ptr, found.rows);
  });
  return {start, row_ptr, rows};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) { m.impl("supernodes", SPGRAD_BOX(&supernodes)); }

}  // namespace spgrad
