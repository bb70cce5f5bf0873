// Merges two patterns line by line, and moves values onto the result.
#include "elementwise/merge.h"

#include <limits>
#include <numeric>
#include <tuple>

#include "common/dispatch.h"
#include "elementwise/merge_lines.h"
#include "elementwise/room.h"

namespace spgrad {
namespace {

struct Cut {
  int64_t p, q;
};

// A point where the merge of entries [p, end_p) of a line of a with [q, end_q) of b may be cut: the
// first part has at most `most` of each operand, and equal indices stay together.
template <class index_t>
Cut cut_of(const index_t* a, const index_t* b, int64_t p, int64_t end_p, int64_t q, int64_t end_q,
           int64_t most) {
  if (end_p - p <= most && end_q - q <= most) return {end_p, end_q};
  const int64_t stop_p = std::min(p + most, end_p), stop_q = std::min(q + most, end_q);
  index_t limit = std::numeric_limits<index_t>::max();
  if (stop_p < end_p) limit = a[stop_p - 1];
  if (stop_q < end_q) limit = std::min(limit, b[stop_q - 1]);
  const Cut cut{std::upper_bound(a + p, a + stop_p, limit) - a,
                std::upper_bound(b + q, b + stop_q, limit) - b};
  // the operand that gave the limit goes on, unless its indices do not ascend
  return cut.p > p || cut.q > q ? cut : Cut{stop_p, stop_q};
}

// Merges from one point to another, and gives the elements to `taker`. Writes to ptr (m + 1) the
// number of elements at the ends of lines, and returns their number.
template <bool kUnion, class index_t, class T>
SPGRAD_CLONES int64_t merge_between(const Operand<index_t, T>& a, const Operand<index_t, T>& b,
                                    Point from, Point to, index_t* ptr,
                                    const Taker<kUnion, index_t, T>& taker) {
  const index_t *ptr_a = a.lines.ptr, *ptr_b = b.lines.ptr;
  int64_t p = from.p, q = from.q, next = 0;
  Batch<kUnion, index_t, T> batch(a, b, taker);
  const auto part_of_line = [&](int64_t end_p, int64_t end_q) {
    while (p < end_p || q < end_q) {
      const Cut cut = cut_of(a.lines.idx, b.lines.idx, p, end_p, q, end_q, batch.kEntries);
      next += batch.merge_part(p, cut.p, q, cut.q, next);
      p = cut.p;
      q = cut.q;
    }
  };
  for (int64_t i = from.line;;) {
    const bool whole = i < to.line && p == ptr_a[i] && q == ptr_b[i];
    const int64_t end = whole ? batch.end_of(i, to.line) : i;
    const int64_t count = end > i ? batch.merge_lines(i, end, next, ptr) : -1;
    if (count >= 0) {
      next += count;
      p = ptr_a[end];
      q = ptr_b[end];
      i = end;
      continue;
    }
    // one line, or what `from` and `to` leave of it
    const bool rest = i == to.line;
    part_of_line(rest ? to.p : ptr_a[i + 1], rest ? to.q : ptr_b[i + 1]);
    if (rest) return next;
    ptr[++i] = static_cast<index_t>(next);
  }
}

// Whether both operands are the same pattern, which is then also the result.
template <class index_t>
bool identical(const Ascending<index_t>& a, const Ascending<index_t>& b) {
  return a.nse == b.nse && !a.order && !b.order && std::equal(a.ptr, a.ptr + a.m + 1, b.ptr) &&
         std::equal(a.idx, a.idx + a.nse, b.idx);
}

using Merged = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

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

using MergedValues = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// The points where the chunks of a merge begin, and its end.
template <class index_t>
List<Point> points_of(const Pair<index_t>& pair, const Chunks& chunks) {
  List<Point> points(chunks.count() + 1);
  for (int64_t chunk = 0; chunk <= chunks.count(); ++chunk) {
    points[chunk] = pair.at(chunks.begin(chunk));
    const Point& before = points[std::max<int64_t>(chunk - 1, 0)];
    STD_TORCH_CHECK(points[chunk].p >= before.p && points[chunk].q >= before.q,
                    "spgrad: the indices of a line do not ascend, although they were checked: "
                    "they were changed since. Make a new tensor of the changed indices.");
  }
  return points;
}

// Merges two operands. The indices of a line are distinct, in any order; those of the result
// ascend. Threads take equal shares of the merge, which may begin and end within lines; the result
// does not depend on their number. taker_from(start) gives the Taker of a thread whose elements
// begin at place `start` of memory for as many elements as the result could have. O(m + nse_a +
// nse_b) time.
template <bool kUnion, class index_t, class T, class TakerFrom>
Shares merge(const Operand<index_t, T>& a, const Operand<index_t, T>& b, index_t* ptr,
             const TakerFrom& taker_from) {
  const Chunks chunks(a.lines.nse + b.lines.nse + a.lines.m);
  const List<Point> points = points_of(Pair<index_t>{a.lines, b.lines}, chunks);
  Shares shares{List<int64_t>(chunks.count()), List<int64_t>(chunks.count() + 1)};
  auto& [starts, base] = shares;
  ptr[0] = 0;
  chunks.for_each([&](int64_t chunk, int64_t, int64_t) {
    const Point from = points[chunk], to = points[chunk + 1];
    starts[chunk] = kUnion ? from.p + from.q : from.p;
    base[chunk + 1] = merge_between<kUnion>(a, b, from, to, ptr, taker_from(starts[chunk]));
  });
  for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) base[chunk + 1] += base[chunk];
  chunks.for_each([&](int64_t chunk, int64_t, int64_t) {
    const int64_t first = points[chunk].line, last = points[chunk + 1].line;
    for (int64_t i = first; i < last && base[chunk] > 0; ++i) {
      ptr[i + 1] += static_cast<index_t>(base[chunk]);
    }
  });
  return shares;
}

// The pattern of the result, and what is kept of each element's entry of a and of b, in tensors
// like `like`; with `fit` in memory of their own size.
template <bool kUnion, class index_t, class T>
MergedValues merge_kept(const Operand<index_t, T>& a, const Operand<index_t, T>& b,
                        const Tensor& like_ptr, const Tensor& like, bool fit) {
  const int64_t most = kUnion ? a.lines.nse + b.lines.nse : a.lines.nse;
  Tensor ptr = empty(like_ptr, {a.lines.m + 1});
  Room<index_t> idx(like_ptr, most);
  Room<T> of_a(like, most), of_b(like, most);
  const auto taker_from = [&](int64_t start) {
    return CopyTo<kUnion, index_t, T>(
        {idx.start() + start, of_a.start() + start, of_b.start() + start});
  };
  const Shares shares = merge<kUnion>(a, b, mutable_data<index_t>(ptr), taker_from);
  return {ptr, std::move(idx).fitted(shares, true), std::move(of_a).fitted(shares, fit),
          std::move(of_b).fitted(shares, fit)};
}

// For each of `nse` entries the element that it became, from the entry of each element; -1 for an
// entry that became none, which does not happen in a union.
template <bool kUnion, class index_t>
Tensor elements_of(const Tensor& from, int64_t nse) {
  Tensor to = empty(from, {nse});
  index_t* const out = mutable_data<index_t>(to);
  const index_t* const entry = data<index_t>(from);
  if (!kUnion) std::fill_n(out, nse, index_t{-1});
  parallel_entries(from.size(0), 1, [&](int64_t first, int64_t last) {
    index_t nowhere;
    for (int64_t e = first; e < last; ++e) {
      index_t* const place = kUnion && entry[e] < 0 ? &nowhere : out + entry[e];
      *place = static_cast<index_t>(e);
    }
  });
  return to;
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
Merged merge_op(const Tensor& ptr_a, const Tensor& idx_a, const Tensor& ptr_b, const Tensor& idx_b,
                bool ordered) {
  Merged merged;
  with_operands(ptr_a, idx_a, ptr_b, idx_b, [&]<class index_t>() {
    const Ascending<index_t> a(ptr_a, idx_a, ordered), b(ptr_b, idx_b, ordered);
    if (identical(a, b)) {
      merged = copied<index_t>(ptr_a, idx_a);
      return;
    }
    const Operand<index_t, index_t> of_a{a, nullptr}, of_b{b, nullptr};
    const auto [ptr, idx, from_a, from_b] = merge_kept<kUnion>(of_a, of_b, ptr_a, ptr_a, true);
    merged = {ptr,
              idx,
              from_a,
              from_b,
              elements_of<kUnion, index_t>(from_a, a.nse),
              elements_of<kUnion, index_t>(from_b, b.nse)};
  });
  return merged;
}

void check_values(const Tensor& idx_a, const Tensor& val_a, const Tensor& idx_b,
                  const Tensor& val_b) {
  check_tensor(val_a, 1, val_a.scalar_type(), "val_a");
  check_tensor(val_b, 1, val_a.scalar_type(), "val_b");
  check_size(val_a, 0, idx_a.size(0), "val_a");
  check_size(val_b, 0, idx_b.size(0), "val_b");
}

template <bool kUnion>
MergedValues merge_values_op(const Tensor& ptr_a, const Tensor& idx_a, const Tensor& val_a,
                             const Tensor& ptr_b, const Tensor& idx_b, const Tensor& val_b,
                             bool ordered) {
  check_values(idx_a, val_a, idx_b, val_b);
  MergedValues merged;
  with_operands(ptr_a, idx_a, ptr_b, idx_b, [&]<class index_t>() {
    dispatch_size(val_a.element_size(), [&]<class T>() {
      const Ascending<index_t> a(ptr_a, idx_a, ordered), b(ptr_b, idx_b, ordered);
      const Operand<index_t, T> of_a{a, static_cast<const T*>(val_a.const_data_ptr())};
      const Operand<index_t, T> of_b{b, static_cast<const T*>(val_b.const_data_ptr())};
      merged = merge_kept<kUnion>(of_a, of_b, ptr_a, val_a, false);
    });
  });
  return merged;
}

using Sum = std::tuple<Tensor, Tensor, Tensor>;

Sum union_sum_op(const Tensor& ptr_a, const Tensor& idx_a, const Tensor& val_a, const Tensor& ptr_b,
                 const Tensor& idx_b, const Tensor& val_b, bool minus, bool ordered) {
  check_values(idx_a, val_a, idx_b, val_b);
  Sum found;
  with_operands(ptr_a, idx_a, ptr_b, idx_b, [&]<class index_t>() {
    dispatch_value(val_a.scalar_type(), [&]<class scalar_t>() {
      dispatch_size(sizeof(scalar_t), [&]<class T>() {
        if constexpr (sizeof(T) == sizeof(scalar_t)) {
          const Ascending<index_t> a(ptr_a, idx_a, ordered), b(ptr_b, idx_b, ordered);
          const Operand<index_t, T> of_a{a, static_cast<const T*>(val_a.const_data_ptr())};
          const Operand<index_t, T> of_b{b, static_cast<const T*>(val_b.const_data_ptr())};
          Tensor ptr = empty(ptr_a, {a.m + 1});
          Room<index_t> idx(ptr_a, a.nse + b.nse);
          Room<scalar_t> sum(val_a, a.nse + b.nse);
          const auto merged = [&]<bool kMinus>() {
            return merge<true>(of_a, of_b, mutable_data<index_t>(ptr), [&](int64_t start) {
              return AddTo<kMinus, index_t, T, scalar_t>(idx.start() + start, sum.start() + start);
            });
          };
          const Shares shares =
              minus ? merged.template operator()<true>() : merged.template operator()<false>();
          found = {ptr, std::move(idx).fitted(shares, true), std::move(sum).fitted(shares, true)};
        }
      });
    });
  });
  return found;
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
  m.impl("union_sum", SPGRAD_BOX(&union_sum_op));
  m.impl("intersection_values", SPGRAD_BOX(&merge_values_op<false>));
  m.impl("take", SPGRAD_BOX(&take_op));
}

}  // namespace spgrad
