// Reduces the entries of every line, finds their extrema, and gives every entry what its line has.
#include "segment.h"
#include "joins.h"

#include <memory>
#include <string>

namespace spgrad {
namespace {

// ---- reductions ------------------------------------------------------------------------------

// ptr (m + 1), perm (nse) or null, val (nse, d), out (m, d), allocated and not initialised. The
// order of a sum depends on its line alone: long lines are taken in blocks of a fixed size, so
// that nothing depends on the number of threads. O(nse d + m) time; memory for a number per block
// of a long line.
template <class Op, class index_t, class T>
struct Reduce {
  using C = calc_t<T>;
  Lines<index_t> lines;
  const T* val;
  T* out;

  // Joins the elements of up to four lines of one column, from entries starts[e] to starts[e + 1]:
  // those from entry `origin` on stand at x, and four vectors can be read past them if there is
  // `room`. Four lines take hardly longer than one.
  template <int kBytes>
  static SPGRAD_INLINE void join_lines(const int64_t (&starts)[5], int64_t count, const C* x,
                                       int64_t origin, bool room, C* joined) {
    const C none = identity<Op, C>();
    if constexpr (std::is_floating_point_v<C>) {
      constexpr int kLanes = kBytes / sizeof(C);
      constexpr int64_t kTogether = 4 * kLanes;  // the length up to which lines wait for each other
      Vector<C, kLanes> lanes[4];
      Vector<C, 4> four;
      int64_t longest = 0;
      for (int64_t e = 0; e < count; ++e) longest = std::max(longest, starts[e + 1] - starts[e]);
      for (auto& of_line : lanes) of_line = all<Vector<C, kLanes>>(none);
      for (int64_t q = 0; q < std::min(longest, kTogether); q += kLanes) {
#pragma GCC unroll 4
        for (int e = 0; e < 4; ++e) {
          if (!room && e >= count) continue;
          const int64_t p = starts[e] + q, left = std::max<int64_t>(starts[e + 1] - p, 0);
          lanes[e] = Op()(lanes[e], load_part<kLanes>(x + (p - origin), left, none, room));
        }
      }
#pragma GCC unroll 4
      for (int e = 0; e < 4; ++e) {
        if (longest <= kTogether || e >= count) continue;
        for (int64_t p = starts[e] + kTogether; p < starts[e + 1]; p += kLanes) {
          const int64_t left = starts[e + 1] - p;
          lanes[e] = Op()(lanes[e],
                          load_part<kLanes>(x + (p - origin), left, none, room || left >= kLanes));
        }
      }
      join_lanes<C, kLanes>(lanes, four, Op());
      std::memcpy(joined, &four, sizeof(four));
    } else {
      for (int64_t e = 0; e < count; ++e) {
        joined[e] = none;
        for (int64_t p = starts[e]; p < starts[e + 1]; ++p)
          joined[e] = Op()(joined[e], x[p - origin]);
      }
    }
  }

  SPGRAD_INLINE void short_lines(int64_t first, int64_t last, int64_t j, const C* x,
                                 int64_t origin) const {
    int64_t p = lines.ptr[first] - origin;
    for (int64_t i = first; i < last; ++i) {
      const int64_t end = lines.ptr[i + 1] - origin;
      C joined = p == end ? C(Op::kEmpty) : identity<Op, C>();
      if constexpr (requires { Op::join_few(joined, x, end); } && std::is_floating_point_v<C>) {
        joined = Op::join_few(joined, x + p, end - p);
        p = end;
      } else {
        for (; p < end; ++p) joined = Op()(joined, x[p]);
      }
      out[i * lines.d + j] = narrow<T>(joined);
    }
  }

  // Lines [first, last) of column j.
  template <int kBytes>
  SPGRAD_INLINE void column(int64_t first, int64_t last, int64_t j, const C* x, int64_t origin,
                            int64_t limit) const {
    constexpr int64_t kLanes = std::max<int64_t>(kBytes / sizeof(C), 1);
    // Of all lines, not of these: sums must not depend on which of them a thread has.
    if (lines.ptr[lines.m] <= Op::kShort * lines.m) return short_lines(first, last, j, x, origin);
    for (int64_t i = first; i < last; i += 4) {
      const int64_t count = std::min<int64_t>(last - i, 4);
      int64_t starts[5];
      for (int64_t e = 0; e <= 4; ++e) starts[e] = lines.ptr[i + std::min(e, count)];
      C joined[4];
      join_lines<kBytes>(starts, count, x, origin, starts[4] + 5 * kLanes <= limit, joined);
      for (int64_t e = 0; e < count; ++e) {
        const bool none = starts[e] == starts[e + 1];
        out[(i + e) * lines.d + j] = narrow<T>(none ? C(Op::kEmpty) : joined[e]);
      }
    }
  }

  // Lines [first, last) of d >= kElements columns.
  template <int kElements>
  SPGRAD_INLINE void columns(int64_t first, int64_t last) const {
    using V = Lanes<T, kElements>;
    for (int64_t i = first; i < last; ++i) {
      for_columns<kElements>(lines.d, [&](int64_t column) {
        V joined = all<V>(lines.length(i) == 0 ? C(Op::kEmpty) : identity<Op, C>());
        join_entries(lines.ptr[i], lines.ptr[i + 1], joined, Op(), [&](int64_t p) {
          V lanes;
          load<kElements>(val + lines.place(p) + column, lanes);
          return lanes;
        });
        store<kElements>(joined, out + i * lines.d + column);
      });
    }
  }

  template <int kBytes>
  SPGRAD_INLINE void few(int64_t first, int64_t last) const {
    if constexpr (std::is_floating_point_v<C>) {
      constexpr int kElements = kFull<T, kBytes>;
      if (lines.d >= kElements) return columns<kElements>(first, last);
      if constexpr (kBytes == 64) {
        if (lines.d >= kElements / 2) return columns<kElements / 2>(first, last);
      }
    }
    const bool in_place = lines.template in_place<T>();
    Buffer<C> buffer;
    for_batches(lines, first, last, !in_place, [&](int64_t from, int64_t to) {
      const int64_t begin = lines.ptr[from], end = lines.ptr[to];
      for (int64_t j = 0; j < lines.d; ++j) {
        const C* x = buffer.elements;
        if (in_place) {
          x = reinterpret_cast<const C*>(val) + begin;
        } else {
          gather(lines, val, j, begin, end, buffer.elements);
        }
        const int64_t limit = in_place ? lines.ptr[lines.m] : end + buffer.kVain;
        column<kBytes>(from, to, j, x, begin, limit);
      }
    });
  }

  void one(int64_t i) const {
    const int64_t d = lines.d, size = lines.at_once();
    const auto partial =
        std::make_unique_for_overwrite<C[]>((lines.length(i) + size - 1) / size * d);
    const int64_t count = for_blocks(lines, i, [&](int64_t b, int64_t begin, int64_t end) {
      Buffer<C> x;
      for (int64_t j = 0; j < d; ++j) {
        gather(lines, val, j, begin, end, x.elements);
        const int64_t size = end - begin, starts[5] = {0, size, size, size, size};
        C joined[4];
        vectors([&]<int kBytes>() { join_lines<kBytes>(starts, 1, x.elements, 0, false, joined); });
        partial[b * d + j] = joined[0];
      }
    });
    for (int64_t j = 0; j < d; ++j) {
      C joined = identity<Op, C>();
      for (int64_t b = 0; b < count; ++b) joined = Op()(joined, partial[b * d + j]);
      out[i * d + j] = narrow<T>(joined);
    }
  }

  // Only floating-point numbers are worth the code for every width.
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
    for_lines(lines, 1, of_few, [&](int64_t i) { one(i); });
  }
};

Tensor segment_reduce(const Tensor& ptr, const std::optional<Tensor>& perm, const Tensor& val,
                      std::string reduce) {
  check_view(ptr, ptr, std::nullopt);
  check_columns(val, "val");
  Tensor out = per_line(ptr, val);
  dispatch(ptr.scalar_type(), val.scalar_type(), [&]<class index_t, class T>() {
    const auto lines = checked_lines<index_t>(ptr, perm, val, "val");
    const auto run = [&]<class Op>() {
      Reduce<Op, index_t, T>{lines, data<T>(val), mutable_data<T>(out)}.run();
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

// ---- positions of extrema --------------------------------------------------------------------

template <class C>
struct Found {
  C best;
  int64_t entry;
};

// Whether b, from a later entry, takes the place of a.
template <bool kLargest, class C>
SPGRAD_INLINE bool replaces(C b, C a) {
  return (kLargest ? !(b <= a) : !(b >= a)) & (a == a);
}

// The extreme one of the elements [x, x + count), the first of equals, by its place from x on.
// `count` is not 0.
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

// As Reduce: arg (m, d) is the first entry of its line that is extreme, -1 for an empty line.
template <bool kLargest, class index_t, class T>
struct Arg {
  using C = calc_t<T>;
  Lines<index_t> lines;
  const T* val;
  int64_t* arg;

  void column(int64_t first, int64_t last, int64_t j, const C* x, int64_t origin) const {
    for (int64_t i = first; i < last; ++i) {
      const int64_t p = lines.ptr[i], count = lines.length(i);
      arg[i * lines.d + j] = count == 0 ? -1 : p + find<kLargest>(x + (p - origin), count).entry;
    }
  }

  void few(int64_t first, int64_t last) const {
    const bool in_place = lines.template in_place<T>();
    Buffer<C> buffer;
    for_batches(lines, first, last, !in_place, [&](int64_t from, int64_t to) {
      const int64_t begin = lines.ptr[from], end = lines.ptr[to];
      for (int64_t j = 0; j < lines.d; ++j) {
        if (!in_place) gather(lines, val, j, begin, end, buffer.elements);
        const C* x = in_place ? reinterpret_cast<const C*>(val) + begin : buffer.elements;
        column(from, to, j, x, begin);
      }
    });
  }

  void one(int64_t i) const {
    const int64_t d = lines.d, size = lines.at_once();
    const auto partial =
        std::make_unique_for_overwrite<Found<C>[]>((lines.length(i) + size - 1) / size * d);
    const int64_t count = for_blocks(lines, i, [&](int64_t b, int64_t begin, int64_t end) {
      Buffer<C> x;
      for (int64_t j = 0; j < d; ++j) {
        gather(lines, val, j, begin, end, x.elements);
        const Found<C> found = find<kLargest>(x.elements, end - begin);
        partial[b * d + j] = {found.best, begin + found.entry};
      }
    });
    for (int64_t j = 0; j < d; ++j) {
      Found<C> found = partial[j];
      for (int64_t b = 1; b < count; ++b) {
        const Found<C> next = partial[b * d + j];
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
  Tensor out = per_line(ptr, val, ScalarType::Long);
  dispatch(ptr.scalar_type(), val.scalar_type(), [&]<class index_t, class T>() {
    const auto lines = checked_lines<index_t>(ptr, perm, val, "val");
    const auto run = [&]<bool kLargest>() {
      const Arg<kLargest, index_t, T> a{lines, data<T>(val), mutable_data<int64_t>(out)};
      for_lines(
          lines, 4, [&](int64_t first, int64_t last) { a.few(first, last); },
          [&](int64_t i) { a.one(i); });
    };
    if constexpr (Lane<T>::count == 1) {
      largest ? run.template operator()<true>() : run.template operator()<false>();
    } else {
      STD_TORCH_CHECK(false, "spgrad: complex numbers have no order.");
    }
  });
  return out;
}

// ---- expansion -------------------------------------------------------------------------------

// out (nse, d), allocated and not initialised: what the line of an entry has in x (m, d), at the
// entry's place. T is any type of the elements' size. Every entry is copied by itself.
template <class index_t, class T>
void expand_entries(const Lines<index_t> lines, const T* x, int64_t first, int64_t last, T* out) {
  const int64_t d = lines.d;
  int64_t i = std::upper_bound(lines.ptr, lines.ptr + lines.m + 1, first) - lines.ptr - 1;
  for (int64_t p = first; p < last; ++i) {
    const int64_t stop = std::min<int64_t>(lines.ptr[i + 1], last);
    const T* row = x + i * d;
    if (d > 1) {
      for (; p < stop; ++p) std::copy_n(row, d, out + lines.place(p));
    } else if (lines.perm == nullptr) {
      for (; p < stop; ++p) out[p] = *row;
    } else {
      for (; p < stop; ++p) out[lines.perm[p]] = *row;
    }
  }
}

Tensor segment_expand(const Tensor& ptr, const std::optional<Tensor>& perm, int64_t nse,
                      const Tensor& x) {
  check_view(ptr, ptr, std::nullopt);
  check_columns(x, "x");
  check_size(x, 0, ptr.size(0) - 1, "x");
  const int64_t d = x.dim() == 2 ? x.size(1) : 1;
  Tensor out = x.dim() == 2 ? empty(x, {nse, d}) : empty(x, {nse});
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    const auto lines = checked_lines<index_t>(ptr, perm, nse, d);
    dispatch_size(x.element_size(), [&]<class T>() {
      if (d == 0) return;
      parallel_entries(nse, d, [&](int64_t first, int64_t last) {
        expand_entries(lines, data<T>(x), first, last, mutable_data<T>(out));
      });
    });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("segment_reduce", TORCH_BOX(&segment_reduce));
  m.impl("segment_arg", TORCH_BOX(&segment_arg));
  m.impl("segment_expand", TORCH_BOX(&segment_expand));
}

}  // namespace spgrad
