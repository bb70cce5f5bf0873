// Reduces every segment to one number, finds its extrema, and expands numbers of the segments to
// their entries.
#include <algorithm>
#include <cstring>
#include <string>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/threads.h"
#include "reductions/joins.h"
#include "reductions/segment_vectors.h"
#include "reductions/segments.h"

namespace spgrad {
namespace {

// ptr (m + 1), perm (nse) or null, val (nse, d), out (m, d), allocated and not initialised. The
// order of a sum depends on its segment alone: long segments are reduced in blocks of a fixed size,
// so results do not depend on the number of threads. O(nse d + m) time; memory for one number for
// each block of a long segment.
template <class Op, class index_t, class T>
struct Reduce {
  using C = calc_t<T>;
  Segments<index_t> segments;
  const T* val;
  T* out;

  // Joins the elements of four segments of one column: segment e has length[e] elements from
  // start[e] on. If kRoom, up to a vector more may be read after them. The lanes of a vector are
  // joined last, for the four segments together; most short segments take one vector each.
  template <int kBytes, bool kRoom>
  static SPGRAD_INLINE void join_four(const C* const (&start)[4], const int64_t (&length)[4],
                                      C (&out)[4]) {
    constexpr int kLanes = kBytes / sizeof(C);
    constexpr bool kEmptyDiffers =
        std::is_same_v<Op, Extreme<true>> || std::is_same_v<Op, Extreme<false>>;
    const C none = identity<Op, C>();
    Vector<C, kLanes> lanes[4];
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) lanes[e] = load_part<kLanes>(start[e], length[e], none, kRoom);
    if (std::max({length[0], length[1], length[2], length[3]}) > kLanes) {
#pragma GCC unroll 4
      for (int e = 0; e < 4; ++e) {
        for (int64_t q = kLanes; q < length[e]; q += kLanes) {
          const bool room = kRoom || length[e] - q >= kLanes;
          lanes[e] = Op()(lanes[e], load_part<kLanes>(start[e] + q, length[e] - q, none, room));
        }
      }
    }
    Vector<C, 4> joined;
    join_lanes<C, kLanes>(lanes, joined, Op());
    if constexpr (kEmptyDiffers) {
      Vector<lane_int_t<C>, 4> entries;
      for (int e = 0; e < 4; ++e) entries[e] = static_cast<lane_int_t<C>>(length[e]);
      joined = entries > 0 ? joined : all<Vector<C, 4>>(C(Op::kEmpty));
    }
    std::memcpy(out, &joined, sizeof joined);
  }

  // Segments [i, i + count) of column j, four at most. x holds the elements from entry `origin` on.
  template <int kBytes, bool kRoom>
  SPGRAD_INLINE void four(int64_t i, int64_t count, int64_t j, const C* x, int64_t origin) const {
    const C* start[4];
    int64_t length[4];
    for (int64_t e = 0; e < 4; ++e) {
      const int64_t begin = segments.ptr[i + std::min(e, count)];
      start[e] = x + (begin - origin);
      length[e] = segments.ptr[i + std::min(e + 1, count)] - begin;
    }
    C joined[4];
    join_four<kBytes, kRoom>(start, length, joined);
    if constexpr (std::is_same_v<T, C>) {
      if (segments.d == 1 && count == 4) return std::memcpy(out + i, joined, sizeof joined), void();
    }
    for (int64_t e = 0; e < count; ++e) out[(i + e) * segments.d + j] = narrow<T>(joined[e]);
  }

  // Segments [first, last) of column j; the elements before entry `limit` may be read.
  template <int kBytes>
  SPGRAD_INLINE void column(int64_t first, int64_t last, int64_t j, const C* x, int64_t origin,
                            int64_t limit) const {
    if constexpr (std::is_floating_point_v<C>) {
      constexpr int64_t kLanes = kBytes / sizeof(C);
      int64_t i = first;
      for (; i + 4 <= last && segments.ptr[i + 4] + kLanes <= limit; i += 4) {
        four<kBytes, true>(i, 4, j, x, origin);
      }
      for (; i < last; i += 4) four<kBytes, false>(i, std::min<int64_t>(last - i, 4), j, x, origin);
    } else {
      for (int64_t i = first; i < last; ++i) {
        C joined = segments.length(i) == 0 ? C(Op::kEmpty) : identity<Op, C>();
        for (int64_t p = segments.ptr[i]; p < segments.ptr[i + 1]; ++p)
          joined = Op()(joined, x[p - origin]);
        out[i * segments.d + j] = narrow<T>(joined);
      }
    }
  }

  // Segments [first, last) of d >= kElements columns.
  template <int kElements>
  SPGRAD_INLINE void columns(int64_t first, int64_t last) const {
    using V = Lanes<T, kElements>;
    for (int64_t i = first; i < last; ++i) {
      for_columns<kElements>(segments.d, [&](int64_t column) {
        V joined = all<V>(segments.length(i) == 0 ? C(Op::kEmpty) : identity<Op, C>());
        join_entries(segments.ptr[i], segments.ptr[i + 1], joined, Op(), [&](int64_t p) {
          V lanes;
          load<kElements>(val + segments.place(p) + column, lanes);
          return lanes;
        });
        store<kElements>(joined, out + i * segments.d + column);
      });
    }
  }

  template <int kBytes>
  SPGRAD_INLINE void few(int64_t first, int64_t last) const {
    if constexpr (std::is_floating_point_v<C>) {
      const auto vectors = [&]<int kElements>() { columns<kElements>(first, last); };
      if (with_columns<T, kBytes>(segments.d, vectors)) return;
    }
    const bool in_place = segments.template in_place<T>();
    Buffer<C> buffer;
    for_buffers(segments, first, last, !in_place, [&](int64_t from, int64_t to) {
      const int64_t begin = segments.ptr[from], end = segments.ptr[to];
      for (int64_t j = 0; j < segments.d; ++j) {
        const C* x = buffer.elements;
        if (in_place) {
          x = reinterpret_cast<const C*>(val) + begin;
        } else {
          gather(segments, val, j, begin, end, buffer.elements);
        }
        const int64_t limit = in_place ? segments.ptr[segments.m] : end + buffer.kSpare;
        column<kBytes>(from, to, j, x, begin, limit);
      }
    });
  }

  // Joins the elements x (count,) into one.
  static C whole(const C* x, int64_t count) {
    C joined = identity<Op, C>();
    if constexpr (std::is_floating_point_v<C>) {
      with_vectors([&]<int kBytes>() {
        C of_segments[4];
        join_four<kBytes, false>({x, x, x, x}, {count, 0, 0, 0}, of_segments);
        joined = of_segments[0];
      });
    } else {
      for (int64_t p = 0; p < count; ++p) joined = Op()(joined, x[p]);
    }
    return joined;
  }

  void one(int64_t i) const {
    const int64_t d = segments.d, size = segments.at_once();
    const auto partial = array<C>((segments.length(i) + size - 1) / size * d);
    const int64_t count = for_blocks(segments, i, [&](int64_t block, int64_t begin, int64_t end) {
      Buffer<C> x;
      for (int64_t j = 0; j < d; ++j) {
        gather(segments, val, j, begin, end, x.elements);
        partial[block * d + j] = whole(x.elements, end - begin);
      }
    });
    for (int64_t j = 0; j < d; ++j) {
      C joined = identity<Op, C>();
      for (int64_t block = 0; block < count; ++block) joined = Op()(joined, partial[block * d + j]);
      out[i * d + j] = narrow<T>(joined);
    }
  }

  // Calls f, compiled for the vectors of this processor, or, for integers, which do not profit from
  // wider vectors, for the narrowest vectors.
  template <class F>
  static SPGRAD_INLINE void vectors(const F& f) {
    if constexpr (std::is_floating_point_v<C>) {
      with_vectors(f);
    } else {
      f.template operator()<16>();
    }
  }

  void run() const {
    const auto of_few = [&](int64_t first, int64_t last) {
      vectors([&]<int kBytes>() { few<kBytes>(first, last); });
    };
    for_segments(segments, 1, of_few, [&](int64_t i) { one(i); });
  }
};

Tensor segment_reduce(const Tensor& ptr, const std::optional<Tensor>& perm, const Tensor& val,
                      std::string reduce) {
  check_view(ptr, ptr, std::nullopt);
  check_columns(val, "val");
  Tensor out = empty_columns(val, ptr.size(0) - 1);
  dispatch(ptr.scalar_type(), val.scalar_type(), [&]<class index_t, class T>() {
    const auto segments = checked_segments<index_t>(ptr, perm, val, "val");
    const auto run = [&]<class Op>() {
      const Reduce<Op, index_t, T> reduction{
          .segments = segments, .val = data<T>(val), .out = mutable_data<T>(out)};
      reduction.run();
    };
    if (reduce == "sum") return run.template operator()<Sum>();
    if (reduce == "prod") return run.template operator()<Product>();
    if constexpr (Lane<T>::count == 1) {
      if (reduce == "amax") return run.template operator()<Extreme<true>>();
      if (reduce == "amin") return run.template operator()<Extreme<false>>();
    }
    STD_TORCH_CHECK(false, "spgrad: `reduce` is ", reduce, " of dtype ", val.scalar_type(),
                    "; it is sum or prod, or amax or amin of real numbers.");
  });
  return out;
}

// An extreme element, and the entry that it belongs to.
template <class C>
struct Found {
  C best;
  int64_t entry;
};

// Whether the element of a later entry is more extreme than the best one so far; a NaN is the most
// extreme element.
template <bool kLargest, class C>
SPGRAD_INLINE bool replaces(C later, C best) {
  return (kLargest ? !(later <= best) : !(later >= best)) & (best == best);
}

// The extreme element of x (count,), the first one if several are equal. `count` is not 0.
template <bool kLargest, class C>
SPGRAD_INLINE Found<C> find(const C* x, int64_t count) {
  C best = x[0];
  int64_t entry = 0;
  for (int64_t p = 1; p < count; ++p) {
    const bool better = replaces<kLargest>(x[p], best);
    best = better ? x[p] : best;
    entry = better ? p : entry;
  }
  return {best, entry};
}

// As Reduce, but writes arg (m, d): the first entry of a segment that is extreme, -1 for none.
template <bool kLargest, class index_t, class T>
struct Arg {
  using C = calc_t<T>;
  Segments<index_t> segments;
  const T* val;
  int64_t* arg;

  void column(int64_t first, int64_t last, int64_t j, const C* x, int64_t origin) const {
    for (int64_t i = first; i < last; ++i) {
      const int64_t p = segments.ptr[i], count = segments.length(i);
      arg[i * segments.d + j] = count == 0 ? -1 : p + find<kLargest>(x + (p - origin), count).entry;
    }
  }

  void few(int64_t first, int64_t last) const {
    const bool in_place = segments.template in_place<T>();
    Buffer<C> buffer;
    for_buffers(segments, first, last, !in_place, [&](int64_t from, int64_t to) {
      const int64_t begin = segments.ptr[from], end = segments.ptr[to];
      for (int64_t j = 0; j < segments.d; ++j) {
        if (!in_place) gather(segments, val, j, begin, end, buffer.elements);
        const C* x = in_place ? reinterpret_cast<const C*>(val) + begin : buffer.elements;
        column(from, to, j, x, begin);
      }
    });
  }

  void one(int64_t i) const {
    const int64_t d = segments.d, size = segments.at_once();
    const auto partial = array<Found<C>>((segments.length(i) + size - 1) / size * d);
    const int64_t count = for_blocks(segments, i, [&](int64_t block, int64_t begin, int64_t end) {
      Buffer<C> x;
      for (int64_t j = 0; j < d; ++j) {
        gather(segments, val, j, begin, end, x.elements);
        const Found<C> found = find<kLargest>(x.elements, end - begin);
        partial[block * d + j] = {found.best, begin + found.entry};
      }
    });
    for (int64_t j = 0; j < d; ++j) {
      Found<C> found = partial[j];
      for (int64_t block = 1; block < count; ++block) {
        const Found<C> next = partial[block * d + j];
        if (replaces<kLargest>(next.best, found.best)) found = next;
      }
      arg[i * d + j] = found.entry;
    }
  }
};

Tensor segment_arg(const Tensor& ptr, const std::optional<Tensor>& perm, const Tensor& val,
                   bool largest) {
  check_view(ptr, ptr, std::nullopt);
  check_columns(val, "val");
  Tensor out = empty_columns(val, ptr.size(0) - 1, ScalarType::Long);
  dispatch(ptr.scalar_type(), val.scalar_type(), [&]<class index_t, class T>() {
    const auto segments = checked_segments<index_t>(ptr, perm, val, "val");
    const auto run = [&]<bool kLargest>() {
      const Arg<kLargest, index_t, T> search{
          .segments = segments, .val = data<T>(val), .arg = mutable_data<int64_t>(out)};
      for_segments(
          segments, 4, [&](int64_t first, int64_t last) { search.few(first, last); },
          [&](int64_t i) { search.one(i); });
    };
    if constexpr (Lane<T>::count == 1) {
      largest ? run.template operator()<true>() : run.template operator()<false>();
    } else {
      STD_TORCH_CHECK(false, "spgrad: complex numbers have no order.");
    }
  });
  return out;
}

// Copies row i of x (m, d) to the place of every entry of segment i in out (nse, d), allocated and
// not initialised. T is any type of the size of the elements.
template <class index_t, class T>
void expand_entries(const Segments<index_t> segments, const T* x, int64_t first, int64_t last,
                    T* out) {
  const int64_t d = segments.d;
  int64_t i =
      std::upper_bound(segments.ptr, segments.ptr + segments.m + 1, first) - segments.ptr - 1;
  for (int64_t p = first; p < last; ++i) {
    const int64_t stop = std::min<int64_t>(segments.ptr[i + 1], last);
    const T* row = x + i * d;
    if (d > 1) {
      for (; p < stop; ++p) std::copy_n(row, d, out + segments.place(p));
    } else if (segments.perm == nullptr) {
      for (; p < stop; ++p) out[p] = *row;
    } else {
      for (; p < stop; ++p) out[segments.perm[p]] = *row;
    }
  }
}

Tensor segment_expand(const Tensor& ptr, const std::optional<Tensor>& perm, int64_t nse,
                      const Tensor& x) {
  check_view(ptr, ptr, std::nullopt);
  check_columns(x, "x");
  check_size(x, 0, ptr.size(0) - 1, "x");
  const int64_t d = num_columns(x);
  Tensor out = empty_columns(x, nse);
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    const auto segments = checked_segments<index_t>(ptr, perm, nse, d);
    dispatch_size(x.element_size(), [&]<class T>() {
      if (d == 0) return;
      parallel_entries(nse, d, [&](int64_t first, int64_t last) {
        expand_entries(segments, data<T>(x), first, last, mutable_data<T>(out));
      });
    });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("segment_reduce", SPGRAD_BOX(&segment_reduce));
  m.impl("segment_arg", SPGRAD_BOX(&segment_arg));
  m.impl("segment_expand", SPGRAD_BOX(&segment_expand));
}

}  // namespace spgrad
