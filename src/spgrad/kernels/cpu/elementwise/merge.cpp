// Merges two patterns line by line, and moves values onto the result.
#include "elementwise/merge.h"

#include <limits>
#include <numeric>
#include <tuple>

#include "common/dispatch.h"
#include "elementwise/merge_values.h"

namespace spgrad {
namespace {

struct Cut {
  int64_t p, q;
};

// A point where the merge of entries [p, end_p) of a line of a with [q, end_q) of b may be cut: the
// first part has at most kEntries of each operand, and equal indices stay together.
template <class index_t>
Cut cut_of(const index_t* a, const index_t* b, int64_t p, int64_t end_p, int64_t q, int64_t end_q) {
  constexpr int64_t kMost = Batch<index_t>::kEntries;
  if (end_p - p <= kMost && end_q - q <= kMost) return {end_p, end_q};
  const int64_t stop_p = std::min(p + kMost, end_p), stop_q = std::min(q + kMost, end_q);
  index_t limit = std::numeric_limits<index_t>::max();
  if (stop_p < end_p) limit = a[stop_p - 1];
  if (stop_q < end_q) limit = std::min(limit, b[stop_q - 1]);
  return {std::upper_bound(a + p, a + stop_p, limit) - a,
          std::upper_bound(b + q, b + stop_q, limit) - b};
}

// Merges from one point to another: numbers the elements from 0 on, and writes to ptr (m + 1) the
// numbers at the ends of lines. `take` gives the memory for the numbers of the next entries of an
// operand, at most kEntries, and is called again when the numbers are written.
template <bool kUnion, class index_t, class Take>
index_t merge_between(const Pair<index_t>& pair, Point from, Point to, Take& take, index_t* ptr) {
  const index_t *a = pair.a.idx, *b = pair.b.idx;
  const index_t *ptr_a = pair.a.ptr, *ptr_b = pair.b.ptr;
  int64_t p = from.p, q = from.q;
  index_t next = 0;
  Batch<index_t> batch;
  using Insert = Insertion<kUnion, index_t>;
  const auto advance = [&](int64_t end_p, int64_t end_q, index_t last) {
    take.numbered(p, end_p, q, end_q, next, last);
    p = end_p;
    q = end_q;
    next = last;
  };
  const auto stretch = [&](int64_t end_p, int64_t end_q) {
    while (p < end_p || q < end_q) {
      const Cut cut = cut_of(a, b, p, end_p, q, end_q);
      const index_t last = merge_stretch<kUnion>(a + p, b + q, 0, cut.p - p, 0, cut.q - q,
                                                 take.of_a(p), take.of_b(q), next);
      advance(cut.p, cut.q, last);
    }
  };
  for (int64_t i = from.line; i < to.line;) {
    const bool whole = p == ptr_a[i] && q == ptr_b[i];
    int64_t end = whole ? batch.end_of(pair, i, to.line) : i;
    const int64_t size_a = ptr_a[end] - p, size_b = ptr_b[end] - q;
    index_t *const to_a = take.of_a(p), *const to_b = take.of_b(q);
    if (end > i && size_b <= size_a / Insert::kTimes) {
      advance(ptr_a[end], ptr_b[end], Insert::merge(pair.a, pair.b, i, end, to_a, to_b, next, ptr));
    } else if (end > i && size_a <= size_b / Insert::kTimes) {
      advance(ptr_a[end], ptr_b[end], Insert::merge(pair.b, pair.a, i, end, to_b, to_a, next, ptr));
    } else if (end > i && batch.fill(pair, i, end)) {
      advance(ptr_a[end], ptr_b[end], batch.template merge<kUnion>(to_a, to_b, next, ptr));
    } else {
      end = i + 1;
      stretch(ptr_a[end], ptr_b[end]);
      ptr[end] = next;
    }
    i = end;
  }
  stretch(to.p, to.q);
  return next;
}

// Keeps the numbers of all entries.
template <class index_t>
struct KeepNumbers {
  index_t *a, *b;

  index_t* of_a(int64_t p) const { return a + p; }
  index_t* of_b(int64_t q) const { return b + q; }
  void numbered(int64_t, int64_t, int64_t, int64_t, index_t, index_t) const {}
};

// Writes the number of the element that each entry of one operand became: first its number in the
// merge of a thread, then, when the counts of all threads are known, its number in the result.
template <class index_t>
struct Renumbered {
  const Ascending<index_t>& operand;
  index_t* to;             // (nse), in the order of the operand
  Array<index_t> of_copy;  // (nse), in the order of the sorted copy, if there is one

  Renumbered(const Ascending<index_t>& from, index_t* out) : operand(from), to(out) {
    if (operand.order) of_copy = array<index_t>(operand.nse);
  }
  index_t* numbers() { return of_copy ? of_copy.get() : to; }

  // Adds `base` to the numbers of the elements of entries [first, last), which are less than `end`,
  // and writes for each element its index and its entry.
  template <bool kUnion>
  void finish(int64_t first, int64_t last, index_t base, index_t end, index_t* idx, index_t* from) {
    if (operand.order) {
      finish<kUnion>(first, last, base, end, idx, from,
                     [&](int64_t p) { return operand.order[p]; });
    } else {
      finish<kUnion>(first, last, base, end, idx, from,
                     [](int64_t p) { return static_cast<index_t>(p); });
    }
  }

 private:
  template <bool kUnion, class Order>
  void finish(int64_t first, int64_t last, index_t base, index_t end, index_t* idx, index_t* from,
              const Order& order) {
    const index_t *number = numbers(), *indices = operand.idx;
    index_t* const out = to;
    if constexpr (kUnion) {
      for (int64_t p = first; p < last; ++p) {
        const index_t entry = order(p), element = number[p] + base;
        out[entry] = element;
        idx[element] = indices[p];
        from[element] = entry;
      }
    } else {
      // Elements ascend, so the next entry overwrites the numbers that an entry without an element
      // writes.
      index_t element = base;
      int64_t p = first;
      for (; p < last && element < end; ++p) {
        const index_t entry = order(p), found = number[p] >= 0;
        out[entry] = element | (found - 1);
        idx[element] = indices[p];
        from[element] = entry;
        element += found;
      }
      for (; p < last; ++p) out[order(p)] = -1;
    }
  }
};

using Merged = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// Whether both operands are the same pattern, which is then also the result.
template <class index_t>
bool identical(const Ascending<index_t>& a, const Ascending<index_t>& b) {
  return a.nse == b.nse && !a.order && !b.order && std::equal(a.ptr, a.ptr + a.m + 1, b.ptr) &&
         std::equal(a.idx, a.idx + a.nse, b.idx);
}

template <class index_t>
Merged copied(const Tensor& ptr, const Tensor& idx) {
  const auto positions = [&] {
    Tensor made = empty(idx, {idx.size(0)});
    index_t* out = mutable_data<index_t>(made);
    parallel_entries(idx.size(0), 1, [&](int64_t first, int64_t last) {
      std::iota(out + first, out + last, static_cast<index_t>(first));
    });
    return made;
  };
  using torch::stable::clone;
  return {clone(ptr), clone(idx), positions(), positions(), positions(), positions()};
}

// The indices of a line of an operand are distinct, in any order; those of the result ascend. First
// the merge numbers the elements: threads take equal shares, which may begin and end within lines.
// When the number of elements is known, the results are written. They do not depend on the number
// of threads. O(m + nse_a + nse_b) time, and no memory but the results if both operands are sorted.
template <bool kUnion, class index_t>
Merged merge(const Tensor& ptr_a, const Tensor& idx_a, const Tensor& ptr_b, const Tensor& idx_b) {
  const Ascending<index_t> a(ptr_a, idx_a), b(ptr_b, idx_b);
  if (identical(a, b)) return copied<index_t>(ptr_a, idx_a);
  const Pair<index_t> pair{a, b};
  const int64_t work = a.nse + b.nse + a.m;
  Tensor ptr = empty(ptr_a, {a.m + 1}), to_a = empty(ptr_a, {a.nse}), to_b = empty(ptr_a, {b.nse});
  index_t* ends = mutable_data<index_t>(ptr);
  ends[0] = 0;
  Renumbered<index_t> of_a(a, mutable_data<index_t>(to_a)), of_b(b, mutable_data<index_t>(to_b));
  const Chunks chunks(work);
  List<index_t> base(chunks.count() + 1);
  chunks.for_each([&](int64_t chunk, int64_t begin, int64_t end) {
    KeepNumbers<index_t> keep{of_a.numbers(), of_b.numbers()};
    base[chunk + 1] = merge_between<kUnion>(pair, pair.at(begin), pair.at(end), keep, ends);
  });
  for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) base[chunk + 1] += base[chunk];
  const int64_t size = base.back();
  Tensor idx = empty(ptr_a, {size}), from_a = empty(ptr_a, {size}), from_b = empty(ptr_a, {size});
  index_t* indices = mutable_data<index_t>(idx);
  index_t *entries_a = mutable_data<index_t>(from_a), *entries_b = mutable_data<index_t>(from_b);
  chunks.for_each([&](int64_t chunk, int64_t begin, int64_t end) {
    const Point from = pair.at(begin), to = pair.at(end);
    if (kUnion) {
      std::fill(entries_a + base[chunk], entries_a + base[chunk + 1], index_t{-1});
      std::fill(entries_b + base[chunk], entries_b + base[chunk + 1], index_t{-1});
    }
    of_a.template finish<kUnion>(from.p, to.p, base[chunk], base[chunk + 1], indices, entries_a);
    of_b.template finish<kUnion>(from.q, to.q, base[chunk], base[chunk + 1], indices, entries_b);
    for (int64_t i = from.line; i < to.line && base[chunk] > 0; ++i) ends[i + 1] += base[chunk];
  });
  return {ptr, idx, from_a, from_b, to_a, to_b};
}

// Checks the operands, and calls f.operator()<index_t>().
template <class F>
void with_operands(const Tensor& ptr_a, const Tensor& idx_a, const Tensor& ptr_b,
                   const Tensor& idx_b, const F& f) {
  check_view(ptr_a, idx_a, std::nullopt);
  check_view(ptr_b, idx_b, std::nullopt);
  check_tensor(ptr_b, 1, ptr_a.scalar_type(), "ptr_b");
  check_size(ptr_b, 0, ptr_a.size(0), "ptr_b");
  dispatch_index(ptr_a.scalar_type(), [&]<class index_t>() {
    check_size(idx_a, 0, data<index_t>(ptr_a)[ptr_a.size(0) - 1], "idx_a");
    check_size(idx_b, 0, data<index_t>(ptr_b)[ptr_b.size(0) - 1], "idx_b");
    f.template operator()<index_t>();
  });
}

template <bool kUnion>
Merged merge_op(const Tensor& ptr_a, const Tensor& idx_a, const Tensor& ptr_b,
                const Tensor& idx_b) {
  Merged merged;
  with_operands(ptr_a, idx_a, ptr_b, idx_b, [&]<class index_t>() {
    merged = merge<kUnion, index_t>(ptr_a, idx_a, ptr_b, idx_b);
  });
  return merged;
}

using MergedValues = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// The elements that the chunks of a merge wrote, without gaps: chunk c wrote base[c + 1] - base[c]
// elements to `wide` from starts[c] on. If there is one chunk, the result is the beginning of
// `wide`; with `fit`, it is always in memory of its own size.
template <class T>
Tensor side_by_side(Tensor wide, const List<int64_t>& starts, const List<int64_t>& base, bool fit) {
  if (starts.size() == 1 && !fit) return torch::stable::narrow(wide, 0, 0, base.back());
  Tensor made = empty(wide, {base.back()});
  T* const to = static_cast<T*>(made.mutable_data_ptr());
  const T* const from = static_cast<const T*>(wide.const_data_ptr());
  parallel_entries(starts.size(), kSerialWork, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      std::copy_n(from + starts[chunk], base[chunk + 1] - base[chunk], to + base[chunk]);
    }
  });
  return made;
}

// As `merge`, but instead of numbering the entries it moves their values while these are in the
// cache. Memory for as many elements as the result could have.
template <bool kUnion, class index_t, class T>
MergedValues merge_values(const Tensor& ptr_a, const Tensor& idx_a, const Tensor& val_a,
                          const Tensor& ptr_b, const Tensor& idx_b, const Tensor& val_b) {
  const Ascending<index_t> a(ptr_a, idx_a), b(ptr_b, idx_b);
  const Pair<index_t> pair{a, b};
  const Chunks chunks(a.nse + b.nse + a.m);
  const int64_t most = kUnion ? a.nse + b.nse : a.nse;
  Tensor ptr = empty(ptr_a, {a.m + 1}), idx = empty(ptr_a, {most});
  Tensor of_a = empty(val_a, {most}), of_b = empty(val_a, {most});
  index_t* const ends = mutable_data<index_t>(ptr);
  ends[0] = 0;
  List<int64_t> starts(chunks.count()), base(chunks.count() + 1);
  chunks.for_each([&](int64_t chunk, int64_t begin, int64_t end) {
    const Point from = pair.at(begin);
    starts[chunk] = kUnion ? from.p + from.q : from.p;
    const Made<index_t, T> made{mutable_data<index_t>(idx) + starts[chunk],
                                static_cast<T*>(of_a.mutable_data_ptr()) + starts[chunk],
                                static_cast<T*>(of_b.mutable_data_ptr()) + starts[chunk]};
    MoveValues<kUnion, index_t, T> move(pair, static_cast<const T*>(val_a.const_data_ptr()),
                                        static_cast<const T*>(val_b.const_data_ptr()), made);
    base[chunk + 1] = merge_between<kUnion>(pair, from, pair.at(end), move, ends);
  });
  for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) base[chunk + 1] += base[chunk];
  chunks.for_each([&](int64_t chunk, int64_t begin, int64_t end) {
    const int64_t first = pair.at(begin).line, last = pair.at(end).line;
    for (int64_t i = first; i < last && base[chunk] > 0; ++i) {
      ends[i + 1] += static_cast<index_t>(base[chunk]);
    }
  });
  return {ptr, side_by_side<index_t>(idx, starts, base, true),
          side_by_side<T>(of_a, starts, base, false), side_by_side<T>(of_b, starts, base, false)};
}

template <bool kUnion>
MergedValues merge_values_op(const Tensor& ptr_a, const Tensor& idx_a, const Tensor& val_a,
                             const Tensor& ptr_b, const Tensor& idx_b, const Tensor& val_b) {
  check_tensor(val_a, 1, val_a.scalar_type(), "val_a");
  check_tensor(val_b, 1, val_a.scalar_type(), "val_b");
  check_size(val_a, 0, idx_a.size(0), "val_a");
  check_size(val_b, 0, idx_b.size(0), "val_b");
  MergedValues merged;
  with_operands(ptr_a, idx_a, ptr_b, idx_b, [&]<class index_t>() {
    dispatch_size(val_a.element_size(), [&]<class T>() {
      merged = merge_values<kUnion, index_t, T>(ptr_a, idx_a, val_a, ptr_b, idx_b, val_b);
    });
  });
  return merged;
}

// `taken`, or zero if all bits of `none` are set: without a branch, which would be mispredicted.
template <class T>
SPGRAD_INLINE T unless(T taken, int64_t none) {
  if constexpr (std::is_integral_v<T>) {
    return taken & static_cast<T>(~none);
  } else {
    return {unless(taken.low, none), unless(taken.high, none)};
  }
}

// out (u, d), val (n, d) and src (u), of elements of any type that has the size of T. n > 0.
template <class index_t, class T>
void take_rows(const T* val, const index_t* src, int64_t d, int64_t first, int64_t last, T* out) {
  if (d == 1) {
    constexpr int64_t kAhead = 32;
    for (int64_t i = first; i < last; ++i) {
      const int64_t later = src[std::min(i + kAhead, last - 1)];
      __builtin_prefetch(val + later);  // also for -1: a prefetch of any address is allowed
      const int64_t from = src[i], none = from >> 63;
      out[i] = unless(val[from & ~none], none);
    }
    return;
  }
  for (int64_t i = first; i < last; ++i) {
    if (src[i] < 0) {
      std::fill_n(out + i * d, d, T{});
    } else {
      std::copy_n(val + static_cast<int64_t>(src[i]) * d, d, out + i * d);
    }
  }
}

Tensor take_op(const Tensor& val, const Tensor& src) {
  check_columns(val, "val");
  check_tensor(src, 1, src.scalar_type(), "src");
  const int64_t count = src.size(0), d = num_columns(val);
  Tensor out = empty_columns(val, count);
  if (val.size(0) == 0) return torch::stable::zero_(out);
  dispatch_index(src.scalar_type(), [&]<class index_t>() {
    dispatch_size(val.element_size(), [&]<class T>() {
      parallel_entries(count, d, [&](int64_t first, int64_t last) {
        take_rows(data<T>(val), data<index_t>(src), d, first, last, mutable_data<T>(out));
      });
    });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("union", SPGRAD_BOX(&merge_op<true>));
  m.impl("intersection", SPGRAD_BOX(&merge_op<false>));
  m.impl("union_values", SPGRAD_BOX(&merge_values_op<true>));
  m.impl("intersection_values", SPGRAD_BOX(&merge_values_op<false>));
  m.impl("take", SPGRAD_BOX(&take_op));
}

}  // namespace spgrad
