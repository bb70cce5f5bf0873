// Kernels that select entries: by ranges and lists of their indices, by lines, and one by one.
#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/payload.h"
#include "common/threads.h"
#include "indexing/search.h"

namespace spgrad {
namespace {

using Selected = std::tuple<Tensor, Tensor, Tensor>;

// Turns the lengths of m lines, stored from ptr + 1 on, into the pointers (m + 1,).
template <class index_t>
void scan(index_t* ptr, int64_t m) {
  ptr[0] = 0;
  std::partial_sum(ptr, ptr + m + 1, ptr);
}

// The `count` indices first, first + step, ..., which are searched for in ascending lines.
template <class index_t>
struct Range {
  const index_t *ptr, *idx;
  int64_t low = 0, high = 0;  // the smallest index, and the largest plus one
  index_t stride;             // between indices
  index_t last;               // new index of the last of them
  bool backward;

  Range(const index_t* starts, const index_t* indices, int64_t first, int64_t step, int64_t count)
      : ptr(starts),
        idx(indices),
        stride(static_cast<index_t>(step < 0 ? -step : step)),
        last(static_cast<index_t>(count - 1)),
        backward(step < 0) {
    const int64_t end = first + (count - 1) * step;
    if (count > 0) low = std::min(first, end), high = std::max(first, end) + 1;
  }

  // Writes the first entry between the bounds, and returns how many entries are selected.
  index_t measure(int64_t line, LineSearch<index_t>* first, LineSearch<index_t>* behind,
                  index_t* start) const {
    const index_t *of_line = idx + ptr[line], *of_next = idx + ptr[line + 1];
    const int64_t begin = ptr[line] + first->below(of_line, of_next, low);
    const int64_t end = ptr[line] + behind->below(of_line, of_next, high);
    *start = static_cast<index_t>(begin);
    if (stride == 1) return static_cast<index_t>(end - begin);
    index_t selected = 0;
    for (int64_t p = begin; p < end; ++p) selected += (idx[p] - base()) % stride == 0;
    return selected;
  }

  // Writes the `count` selected entries of a line. None of them is before `start`.
  template <class Payload>
  void fill(int64_t start, int64_t count, int64_t to, index_t* out_idx,
            const Payload& payload) const {
    if (stride == 1 && !backward) {
      for (int64_t q = 0; q < count; ++q) {
        out_idx[to + q] = idx[start + q] - base();
        payload.place(to + q, start + q);
      }
      return;
    }
    for (int64_t p = start, q = 0; q < count; ++p) {
      index_t place = idx[p] - base();
      if (stride != 1) {
        const index_t whole = place / stride;
        if (whole * stride != place) continue;
        place = whole;
      }
      const int64_t at = to + (backward ? count - 1 - q : q);
      out_idx[at] = backward ? last - place : place;
      payload.place(at, p);
      ++q;
    }
  }

 private:
  index_t base() const { return static_cast<index_t>(low); }
};

// ptr (m + 1,), idx (nse,) ascending in each line, val (nse,) or null. Allocates the results. Two
// searches a line and one more pass over the entries between the bounds: O(m log(nse / m) + entries
// between the bounds) time, and memory for m numbers.
template <class index_t>
Selected select_range(const Tensor& ptr, const Tensor& idx, int64_t first, int64_t step,
                      int64_t count, const std::optional<Tensor>& val) {
  const int64_t m = ptr.size(0) - 1;
  const Range<index_t> range(data<index_t>(ptr), data<index_t>(idx), first, step, count);
  const auto starts = array<index_t>(m);
  Tensor new_ptr = empty(ptr, {m + 1});
  index_t* out_ptr = mutable_data<index_t>(new_ptr);
  parallel_rows(range.ptr, m, 1, [&](int64_t from, int64_t to) {
    LineSearch<index_t> begin, end;
    for (int64_t i = from; i < to; ++i) {
      out_ptr[i + 1] = range.measure(i, &begin, &end, &starts[i]);
    }
  });
  scan(out_ptr, m);
  const int64_t nse = out_ptr[m];
  Tensor new_idx = empty(ptr, {nse}), moved = empty_payload(val, ptr, nse);
  index_t* out_idx = mutable_data<index_t>(new_idx);
  dispatch_payload<index_t>(val, moved, [&](auto payload) {
    parallel_rows(out_ptr, m, 1, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        range.fill(starts[i], out_ptr[i + 1] - out_ptr[i], out_ptr[i], out_idx, payload);
      }
    });
  });
  return {new_ptr, new_idx, moved};
}

Selected select_range_op(const Tensor& ptr, const Tensor& idx, int64_t first, int64_t step,
                         int64_t count, const std::optional<Tensor>& val) {
  check_view(ptr, idx, std::nullopt);
  check_payload(val, idx.size(0));
  STD_TORCH_CHECK(step != 0, "spgrad: `step` is 0.");
  const int64_t most = ptr.scalar_type() == ScalarType::Int ? INT32_MAX : INT64_MAX;
  STD_TORCH_CHECK(
      -most <= step && step <= most && -1 <= first && first <= most && 0 <= count && count <= most,
      "spgrad: `first`, `step` and `count` do not fit the dtype of the indices.");
  Selected selected;
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    selected = select_range<index_t>(ptr, idx, first, step, count, val);
  });
  return selected;
}

// Copies lines by their numbers, in any order and as often as they are listed, with their values. A
// loop over kTogether entries is faster than a loop that stops at the end of the line, although it
// copies some entries beyond the end. The next line overwrites these entries.
template <class index_t, class T>
void copy_lines(const index_t* ptr, const index_t* idx, const T* val, const int64_t* lines,
                int64_t first, int64_t last, int64_t nse, const index_t* out_ptr, index_t* out_idx,
                T* out) {
  constexpr int64_t kTogether = 8, kAhead = 8;
  const int64_t writable = out_ptr[last] - kTogether;
  for (int64_t j = first; j < last; ++j) {
    if (j + kAhead < last) {
      const int64_t soon = ptr[lines[j + kAhead]];
      __builtin_prefetch(idx + soon);
      __builtin_prefetch(val + soon);
    }
    int64_t p = ptr[lines[j]], q = out_ptr[j];
    const int64_t stop = ptr[lines[j] + 1];
    for (; p < stop && p <= nse - kTogether && q <= writable; p += kTogether, q += kTogether) {
      std::copy_n(idx + p, kTogether, out_idx + q);
      std::copy_n(val + p, kTogether, out + q);
    }
    for (; p < stop; ++p, ++q) {
      out_idx[q] = idx[p];
      out[q] = val[p];
    }
  }
}

// ptr (m + 1,), idx (nse,), val (nse,), lines (l,) int64 in [0, m), the result `count` entries.
// O(l + count) time; nothing but the result is allocated.
Selected list_lines_op(const Tensor& ptr, const Tensor& idx, const Tensor& val,
                       const Tensor& lines) {
  check_view(ptr, idx, std::nullopt);
  check_payload(val, idx.size(0));
  check_tensor(lines, 1, ScalarType::Long, "lines");
  const int64_t listed = lines.size(0), m = ptr.size(0) - 1, nse = idx.size(0);
  Tensor new_ptr = empty(ptr, {listed + 1}), new_idx, moved;
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    const index_t* starts = data<index_t>(ptr);
    const int64_t* numbers = data<int64_t>(lines);
    index_t* out_ptr = mutable_data<index_t>(new_ptr);
    int64_t count = 0;
    for (int64_t j = 0; j < listed; ++j) {
      out_ptr[j] = static_cast<index_t>(count);
      const int64_t line = numbers[j];
      STD_TORCH_CHECK(line >= 0 && line < m, "spgrad: `lines` holds ", line, "; there are ", m,
                      " lines.");
      count += starts[line + 1] - starts[line];
    }
    check_fits(ptr.scalar_type(), count);
    out_ptr[listed] = static_cast<index_t>(count);
    new_idx = empty(ptr, {count});
    moved = empty(val, {count});
    dispatch_size(val.element_size(), [&]<class T>() {
      parallel_rows(out_ptr, listed, 1, [&](int64_t first, int64_t last) {
        copy_lines(starts, data<index_t>(idx), data<T>(val), numbers, first, last, nse, out_ptr,
                   mutable_data<index_t>(new_idx), mutable_data<T>(moved));
      });
    });
  });
  return {new_ptr, new_idx, moved};
}

// Sorts `count` distinct indices, and with them the entries that they came from. In a short line
// the place of an index is the number of smaller ones: no branch depends on the indices.
template <class index_t>
void sort_line(index_t* idx, index_t* from, int64_t count,
               List<std::pair<index_t, index_t>>& pairs) {
  constexpr int64_t kShort = 32;
  if (count > kShort) {
    pairs.resize(count);
    for (int64_t q = 0; q < count; ++q) pairs[q] = {idx[q], from[q]};
    std::sort(pairs.begin(), pairs.end());
    for (int64_t q = 0; q < count; ++q) std::tie(idx[q], from[q]) = pairs[q];
    return;
  }
  index_t old_idx[kShort], old_from[kShort];
  std::copy_n(idx, count, old_idx);
  std::copy_n(from, count, old_from);
  for (int64_t q = 0; q < count; ++q) {
    const index_t own = old_idx[q];
    index_t place = 0;
    for (int64_t r = 0; r < count; ++r) place += old_idx[r] < own;
    idx[place] = own;
    from[place] = old_from[q];
  }
}

// Selects entries by index. The old index j becomes the new indices inv_idx[inv_ptr[j] : inv_ptr[j
// + 1]].
template <class index_t>
struct Columns {
  const index_t *ptr, *idx, *inv_ptr, *inv_idx;

  index_t length(int64_t line) const {
    index_t found = 0;
    for (int64_t p = ptr[line]; p < ptr[line + 1]; ++p) {
      found += inv_ptr[idx[p] + 1] - inv_ptr[idx[p]];
    }
    return found;
  }

  // Writes one line, and returns whether its new indices ascend.
  bool fill(int64_t line, int64_t, index_t* out_idx, index_t* from) const {
    int64_t q = 0;
    bool ascending = true;
    index_t before = -1;
    for (int64_t p = ptr[line]; p < ptr[line + 1]; ++p) {
      for (int64_t r = inv_ptr[idx[p]]; r < inv_ptr[idx[p] + 1]; ++r, ++q) {
        ascending &= inv_idx[r] > before;
        before = inv_idx[r];
        out_idx[q] = before;
        from[q] = static_cast<index_t>(p);
      }
    }
    return ascending;
  }
};

// The same where no old index becomes more than one new index: `to` has this index, or -1. Whether
// an entry is selected decides about no branch, as half of these might be mispredicted.
template <class index_t>
struct DistinctColumns {
  const index_t *ptr, *idx;
  Array<index_t> to;

  DistinctColumns(const Columns<index_t>& columns, int64_t k)
      : ptr(columns.ptr), idx(columns.idx), to(array<index_t>(k)) {
    for (int64_t j = 0; j < k; ++j) {
      const bool some = columns.inv_ptr[j] < columns.inv_ptr[j + 1];
      to[j] = some ? columns.inv_idx[columns.inv_ptr[j]] : index_t{-1};
    }
  }

  index_t length(int64_t line) const {
    index_t found = 0;
    for (int64_t p = ptr[line]; p < ptr[line + 1]; ++p) found += to[idx[p]] >= 0;
    return found;
  }

  // As above; `count` is the length of the line, behind which nothing is written.
  bool fill(int64_t line, int64_t count, index_t* out_idx, index_t* from) const {
    bool ascending = true;
    index_t before = -1;
    int64_t p = ptr[line];
    for (int64_t q = 0; q < count; ++p) {
      const index_t place = to[idx[p]];
      out_idx[q] = place;
      from[q] = static_cast<index_t>(p);
      ascending &= place < 0 || place > before;
      before = place < 0 ? before : place;
      q += place >= 0;
    }
    return ascending;
  }
};

// Allocates the results of columns.length and columns.fill, in order.
template <class index_t, class Selection>
Selected selected_columns(const Tensor& ptr, const Selection& columns) {
  const int64_t m = ptr.size(0) - 1;
  Tensor new_ptr = empty(ptr, {m + 1});
  index_t* out_ptr = mutable_data<index_t>(new_ptr);
  parallel_rows(columns.ptr, m, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) out_ptr[i + 1] = columns.length(i);
  });
  scan(out_ptr, m);
  const int64_t nse = out_ptr[m];
  Tensor new_idx = empty(ptr, {nse}), source = empty(ptr, {nse});
  index_t *out_idx = mutable_data<index_t>(new_idx), *from = mutable_data<index_t>(source);
  parallel_rows(columns.ptr, m, 1, [&](int64_t first, int64_t last) {
    List<std::pair<index_t, index_t>> pairs;
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = out_ptr[i], count = out_ptr[i + 1] - begin;
      if (!columns.fill(i, count, out_idx + begin, from + begin)) {
        sort_line(out_idx + begin, from + begin, count, pairs);
      }
    }
  });
  return {new_ptr, new_idx, source};
}

// ptr (m + 1,), idx (nse,) in [0, k); inv_ptr (k + 1,), inv_idx. Allocates the results. For n
// entries of the result, O(m + k + nse + n) time if they stay in order, otherwise O(n log(longest
// line)); memory for k numbers.
template <class index_t>
Selected select_columns(const Tensor& ptr, const Tensor& idx, const Tensor& inv_ptr,
                        const Tensor& inv_idx) {
  const Columns<index_t> columns{.ptr = data<index_t>(ptr),
                                 .idx = data<index_t>(idx),
                                 .inv_ptr = data<index_t>(inv_ptr),
                                 .inv_idx = data<index_t>(inv_idx)};
  const int64_t k = inv_ptr.size(0) - 1;
  index_t most = 0;
  for (int64_t j = 0; j < k; ++j) {
    most = std::max<index_t>(most, columns.inv_ptr[j + 1] - columns.inv_ptr[j]);
  }
  if (most > 1) return selected_columns<index_t>(ptr, columns);
  return selected_columns<index_t>(ptr, DistinctColumns<index_t>(columns, k));
}

Selected select_columns_op(const Tensor& ptr, const Tensor& idx, const Tensor& inv_ptr,
                           const Tensor& inv_idx) {
  check_view(ptr, idx, std::nullopt);
  check_tensor(inv_ptr, 1, ptr.scalar_type(), "inv_ptr");
  check_view(inv_ptr, inv_idx, std::nullopt);
  Selected selected;
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    check_size(inv_idx, 0, data<index_t>(inv_ptr)[inv_ptr.size(0) - 1], "inv_idx");
    selected = select_columns<index_t>(ptr, idx, inv_ptr, inv_idx);
  });
  return selected;
}

// found (p,) preallocated; line (p,) in [0, m), index (p,) of any size; idx ascending in each line.
// O(p log nse) time.
template <class index_t>
void locate(const index_t* ptr, const index_t* idx, const int64_t* line, const int64_t* index,
            int64_t first, int64_t last, int64_t* found) {
  LineSearch<index_t> search;
  for (int64_t i = first; i < last; ++i) {
    const index_t *begin = idx + ptr[line[i]], *end = idx + ptr[line[i] + 1];
    const index_t* const at = begin + search.below(begin, end, index[i]);
    found[i] = at != end && *at == index[i] ? at - idx : -1;
  }
}

Tensor locate_op(const Tensor& ptr, const Tensor& idx, const Tensor& line, const Tensor& index) {
  check_view(ptr, idx, std::nullopt);
  check_tensor(line, 1, ScalarType::Long, "line");
  check_tensor(index, 1, ScalarType::Long, "index");
  check_size(index, 0, line.size(0), "index");
  constexpr int64_t kCost = 32;  // steps of a search
  Tensor found = empty(line, {line.size(0)});
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    const int64_t* lines = data<int64_t>(line);
    const int64_t m = ptr.size(0) - 1, points = line.size(0);
    for (int64_t i = 0; i < points; ++i) {
      STD_TORCH_CHECK(0 <= lines[i] && lines[i] < m, "spgrad: line ", lines[i], " of ", m, ".");
    }
    parallel_entries(points, kCost, [&](int64_t first, int64_t last) {
      locate(data<index_t>(ptr), data<index_t>(idx), lines, data<int64_t>(index), first, last,
             mutable_data<int64_t>(found));
    });
  });
  return found;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("select_range", SPGRAD_BOX(&select_range_op));
  m.impl("select_columns", SPGRAD_BOX(&select_columns_op));
  m.impl("list_lines", SPGRAD_BOX(&list_lines_op));
  m.impl("locate", SPGRAD_BOX(&locate_op));
}

}  // namespace spgrad
