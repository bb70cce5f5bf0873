// Merges two patterns line by line, and moves values onto the result.
#include "elementwise/merge.h"

#include <numeric>
#include <tuple>

#include "common/dispatch.h"

namespace spgrad {
namespace {

// Merges from one point to another: numbers the elements from 0 on, and writes to ptr (m + 1) the
// numbers at the ends of lines.
template <bool kUnion, class index_t>
index_t merge_between(const Pair<index_t>& pair, Point from, Point to, index_t* to_a, index_t* to_b,
                      index_t* ptr) {
  const index_t *a = pair.a.idx, *b = pair.b.idx;
  const index_t *ptr_a = pair.a.ptr, *ptr_b = pair.b.ptr;
  int64_t p = from.p, q = from.q;
  index_t next = 0;
  Batch<index_t> batch;
  for (int64_t i = from.line; i < to.line;) {
    const bool whole = p == ptr_a[i] && q == ptr_b[i];
    int64_t end = whole ? batch.fill(pair, i, to.line) : i;
    if (end > i) {
      next = batch.template merge<kUnion>(to_a + p, to_b + q, next, ptr);
    } else {
      end = i + 1;
      next = merge_stretch<kUnion>(a, b, p, ptr_a[end], q, ptr_b[end], to_a, to_b, next);
      ptr[end] = next;
    }
    p = ptr_a[end];
    q = ptr_b[end];
    i = end;
  }
  return merge_stretch<kUnion>(a, b, p, to.p, q, to.q, to_a, to_b, next);
}

// Writes the element that each entry of one operand became: first as the merge numbers them, then,
// when the numbers of all threads are known, as they are numbered in the result.
template <class index_t>
struct Renumbered {
  const Ascending<index_t>& operand;
  index_t* to;             // (nse), in the order of the operand
  Array<index_t> of_copy;  // (nse), in the order of its sorted copy, if it has one

  Renumbered(const Ascending<index_t>& from, index_t* out) : operand(from), to(out) {
    if (operand.order) of_copy = array<index_t>(operand.nse);
  }
  index_t* numbers() { return of_copy ? of_copy.get() : to; }

  // Adds `base` to the elements of entries [first, last), which end before `end`, and writes the
  // index of each element, and the entry that it is from.
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
      // Elements ascend, so what an entry without an element writes is written again by the next.
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

// Indices of one line of an operand are distinct, in any order; those of the result ascend. First
// the merge numbers the elements: threads take equal shares, wherever lines begin and end. When the
// number of elements is known, the results are filled in. Nothing depends on the number of threads.
// O(m + nse_a + nse_b) time, and no memory but the results if both operands are sorted.
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
    base[chunk + 1] = merge_between<kUnion>(pair, pair.at(begin), pair.at(end), of_a.numbers(),
                                            of_b.numbers(), ends);
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

template <bool kUnion>
Merged merge_op(const Tensor& ptr_a, const Tensor& idx_a, const Tensor& ptr_b,
                const Tensor& idx_b) {
  check_view(ptr_a, idx_a, std::nullopt);
  check_view(ptr_b, idx_b, std::nullopt);
  check_tensor(ptr_b, 1, ptr_a.scalar_type(), "ptr_b");
  check_size(ptr_b, 0, ptr_a.size(0), "ptr_b");
  Merged merged;
  dispatch_index(ptr_a.scalar_type(), [&]<class index_t>() {
    check_size(idx_a, 0, data<index_t>(ptr_a)[ptr_a.size(0) - 1], "idx_a");
    check_size(idx_b, 0, data<index_t>(ptr_b)[ptr_b.size(0) - 1], "idx_b");
    merged = merge<kUnion, index_t>(ptr_a, idx_a, ptr_b, idx_b);
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
      __builtin_prefetch(val + later);  // also of -1: no address is an error
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
  m.impl("take", SPGRAD_BOX(&take_op));
}

}  // namespace spgrad
