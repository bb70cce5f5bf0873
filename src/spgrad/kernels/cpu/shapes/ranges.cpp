// Joins ranges of entries into new lines, and finds the entries where lines are cut.
#include <algorithm>
#include <tuple>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/threads.h"
#include "indexing/search.h"

namespace spgrad {
namespace {

// Ranges of entries [begin[j], end[j]), which are written one after the other: range j from ptr[j]
// on, its last entry first if `backward`.
template <class index_t>
struct Ranges {
  const index_t *begin, *end, *ptr;
  int64_t nse;  // entries to choose from
  bool backward;

  static constexpr int64_t kTogether = 8;

  // Prefetches the first elements, of `size` each, of the range that is kAhead ranges after j. If
  // ranges come in any order, each of them is a cache miss.
  template <class T>
  SPGRAD_INLINE void prefetch(const T* in, int64_t size, int64_t j, int64_t last) const {
    constexpr int64_t kAhead = 12, kLine = 64 / sizeof(T);
    if (backward || j + kAhead >= last) return;
    const T* from = in + begin[j + kAhead] * size;
    __builtin_prefetch(from);
    if ((end[j + kAhead] - begin[j + kAhead]) * size > kLine) __builtin_prefetch(from + kLine);
  }

  // Calls some(p, q) to write kTogether entries p, p + 1, ... to q, q + 1, ..., and one(p, q) for
  // each remaining entry. A loop over kTogether entries is faster than a loop that stops at the end
  // of the range, although it copies some entries beyond the end. The next range overwrites these
  // entries.
  template <class Some, class One>
  SPGRAD_INLINE void visit(int64_t j, int64_t writable, const Some& some, const One& one) const {
    int64_t q = ptr[j];
    const int64_t first = begin[j], stop = end[j];
    if (backward) {
      for (int64_t p = stop - 1; p >= first; --p, ++q) one(p, q);
      return;
    }
    int64_t p = first;
    for (; p < stop && p <= nse - kTogether && q <= writable; p += kTogether, q += kTogether) {
      some(p, q);
    }
    for (; p < stop; ++p, ++q) one(p, q);
  }
};

template <class index_t>
Ranges<index_t> check_ranges(const Tensor& begin, const Tensor& end, const Tensor& ptr, int64_t nse,
                             bool backward) {
  check_tensor(begin, 1, ptr.scalar_type(), "begin");
  check_tensor(end, 1, ptr.scalar_type(), "end");
  check_tensor(ptr, 1, ptr.scalar_type(), "ptr");
  check_size(end, 0, begin.size(0), "end");
  check_size(ptr, 0, begin.size(0) + 1, "ptr");
  return {.begin = data<index_t>(begin),
          .end = data<index_t>(end),
          .ptr = data<index_t>(ptr),
          .nse = nse,
          .backward = backward};
}

// Writes pointers (s + 1,) to ranges [begin[j], end[j]) that are written one after the other, and
// returns their number of entries.
template <class index_t>
int64_t write_pointers(const index_t* begin, const index_t* end, int64_t ranges, index_t* ptr) {
  int64_t next = 0;
  for (int64_t j = 0; j < ranges; ++j) {
    ptr[j] = static_cast<index_t>(next);
    next += std::max<int64_t>(int64_t{end[j]} - begin[j], 0);
  }
  ptr[ranges] = static_cast<index_t>(next);
  return next;
}

// idx (nse,), begin and end (s,) of entries of idx, shift (r,) with r >= 1, `count` entries in all.
// Ranges may overlap and come in any order. O(s + count) time; nothing but the result is allocated.
// The result does not depend on the number of threads.
std::tuple<Tensor, Tensor> join_ranges_op(const Tensor& idx, const Tensor& begin, const Tensor& end,
                                          const Tensor& shift, int64_t count, bool backward) {
  const ScalarType dtype = idx.scalar_type();
  check_tensor(idx, 1, dtype, "idx");
  check_tensor(shift, 1, dtype, "shift");
  const int64_t ranges = begin.size(0), period = shift.size(0);
  STD_TORCH_CHECK(period >= 1, "spgrad: `shift` is empty.");
  check_fits(dtype, count);
  Tensor ptr = empty(idx, {ranges + 1}), made = empty(idx, {count});
  dispatch_index(dtype, [&]<class index_t>() {
    const auto joined = check_ranges<index_t>(begin, end, ptr, idx.size(0), backward);
    const int64_t found =
        write_pointers(joined.begin, joined.end, ranges, mutable_data<index_t>(ptr));
    STD_TORCH_CHECK(found == count, "spgrad: the ranges hold ", found, " entries, not ", count,
                    ".");
    const index_t *in = data<index_t>(idx), *shifts = data<index_t>(shift);
    index_t* const out = mutable_data<index_t>(made);
    parallel_rows(joined.ptr, ranges, 1, [&](int64_t first, int64_t last) {
      const int64_t writable = joined.ptr[last] - joined.kTogether;
      for (int64_t j = first; j < last; ++j) {
        const index_t added = period == 1 ? shifts[0] : shifts[j % period];
        joined.prefetch(in, 1, j, last);
        joined.visit(
            j, writable,
            [&](int64_t p, int64_t q) {
              for (int64_t l = 0; l < joined.kTogether; ++l) out[q + l] = in[p + l] + added;
            },
            [&](int64_t p, int64_t q) { out[q] = backward ? added - in[p] : in[p] + added; });
      }
    });
  });
  return {ptr, made};
}

// out (ptr[s],) or (ptr[s], d), of elements of any type. O(s + d ptr[s]) time.
Tensor take_ranges_op(const Tensor& val, const Tensor& ptr, const Tensor& begin, const Tensor& end,
                      int64_t count, bool backward) {
  check_columns(val, "val");
  const int64_t ranges = begin.size(0), d = num_columns(val);
  Tensor made = empty_columns(val, count);
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    const auto joined = check_ranges<index_t>(begin, end, ptr, val.size(0), backward);
    STD_TORCH_CHECK(joined.ptr[ranges] == count, "spgrad: the ranges hold ", joined.ptr[ranges],
                    " entries, not ", count, ".");
    dispatch_size(val.element_size(), [&]<class T>() {
      const T* const in = data<T>(val);
      T* const out = mutable_data<T>(made);
      const auto copy = [&](int64_t p, int64_t q, int64_t entries) {
        std::copy_n(in + p * d, entries * d, out + q * d);
      };
      parallel_rows(joined.ptr, ranges, d, [&](int64_t first, int64_t last) {
        const int64_t writable = joined.ptr[last] - joined.kTogether;
        for (int64_t j = first; j < last; ++j) {
          joined.prefetch(in, d, j, last);
          if (d == 1) {
            joined.visit(
                j, writable,
                [&](int64_t p, int64_t q) { std::copy_n(in + p, joined.kTogether, out + q); },
                [&](int64_t p, int64_t q) { out[q] = in[p]; });
          } else if (backward) {
            joined.visit(
                j, writable, [](int64_t, int64_t) {}, [&](int64_t p, int64_t q) { copy(p, q, 1); });
          } else {
            copy(joined.begin[j], joined.ptr[j],
                 std::max<int64_t>(joined.end[j] - joined.begin[j], 0));
          }
        }
      });
    });
  });
  return made;
}

// For every line i, the first entry whose index is bound[i] or more; the end of the line if there
// is none. Lines ascend. cut (m,) preallocated. O(m log(longest line)) time.
Tensor cut_lines_op(const Tensor& ptr, const Tensor& idx, const Tensor& bound) {
  check_view(ptr, idx, std::nullopt);
  check_tensor(bound, 1, ScalarType::Long, "bound");
  const int64_t m = ptr.size(0) - 1;
  check_size(bound, 0, m, "bound");
  Tensor cut = empty(ptr, {m});
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    const index_t *starts = data<index_t>(ptr), *indices = data<index_t>(idx);
    const int64_t* bounds = data<int64_t>(bound);
    index_t* out = mutable_data<index_t>(cut);
    parallel_entries(m, 16, [&](int64_t first, int64_t last) {
      LineSearch<index_t> search;
      for (int64_t i = first; i < last; ++i) {
        const index_t *begin = indices + starts[i], *end = indices + starts[i + 1];
        out[i] = static_cast<index_t>(starts[i] + search.below(begin, end, bounds[i]));
      }
    });
  });
  return cut;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("join_ranges", SPGRAD_BOX(&join_ranges_op));
  m.impl("take_ranges", SPGRAD_BOX(&take_ranges_op));
  m.impl("cut_lines", SPGRAD_BOX(&cut_lines_op));
}

}  // namespace spgrad
