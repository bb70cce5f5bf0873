// Segments, the entries that are reduced to one number: their arguments, and how they are divided
// among threads and copied into buffers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "common/arguments.h"
#include "common/lanes.h"
#include "common/threads.h"

namespace spgrad {

// The type in which single elements of T are calculated: T itself for integers, float for 16-bit
// floats.
template <class T>
using calc_t = std::conditional_t<std::is_integral_v<T>, T, accumulate_t<T>>;

// long_sum_t<T>: the type in which long sums of T are formed: double for floats, because the error
// grows with the length.
template <class T>
struct LongSum {
  using type = std::conditional_t<std::is_same_v<accumulate_t<T>, float>, double, accumulate_t<T>>;
};
template <>
struct LongSum<Complex<float>> {
  using type = Complex<double>;
};
template <class T>
using long_sum_t = typename LongSum<T>::type;

// A number of another type, a complex one too.
template <class To, class From>
SPGRAD_INLINE To converted(From value) {
  if constexpr (requires { value.re; }) {
    using Part = decltype(To::re);
    return To(static_cast<Part>(value.re), static_cast<Part>(value.im));
  } else {
    return static_cast<To>(value);
  }
}

// Entry p of segment i, ptr[i] <= p < ptr[i + 1], has the `d` values at perm[p], or p. ptr (m + 1),
// perm (nse) or null.
template <class index_t>
struct Segments {
  const index_t *ptr, *perm;
  int64_t m, d;

  SPGRAD_INLINE int64_t place(int64_t p) const {
    return (perm == nullptr ? p : static_cast<int64_t>(perm[p])) * d;
  }
  SPGRAD_INLINE int64_t length(int64_t i) const { return int64_t{ptr[i + 1]} - ptr[i]; }

  // Whether the values of T are in the order of the view and of a type that is calculated in, so
  // that no buffer is needed.
  template <class T>
  bool in_place() const {
    return std::is_same_v<T, calc_t<T>> && perm == nullptr && d == 1;
  }
  // The number of entries that are copied into a buffer together: their values of all columns stay
  // in the cache.
  int64_t at_once() const { return std::max<int64_t>(kBlock / std::max<int64_t>(d, 1), 64); }

  // The longest segment that one thread reduces as a whole.
  static constexpr int64_t kBlock = 4096;
};

// The elements of one or several segments in one column: at most kBlock elements. Vectors that pass
// the end of the last segment may read and write kSpare more.
template <class C>
struct Buffer {
  static constexpr int64_t kSpare = 5 * 64 / sizeof(float);
  C elements[Segments<int32_t>::kBlock + kSpare]{};
};

// Writes column `column` of the entries [begin, end) to `out`, one after another.
template <class index_t, class T>
SPGRAD_INLINE void gather(const Segments<index_t>& segments, const T* val, int64_t column,
                          int64_t begin, int64_t end, calc_t<T>* out) {
  const int64_t d = segments.d, count = end - begin;
  val += column;
  if (segments.perm == nullptr) {
    for (int64_t i = 0; i < count; ++i) {
      out[i] = static_cast<calc_t<T>>(widen(val[(begin + i) * d]));
    }
    return;
  }
  const index_t* const perm = segments.perm + begin;
  const auto each = [&](const auto& place) {
    for (int64_t i = 0; i < count; ++i) {
      out[i] = static_cast<calc_t<T>>(widen(val[place(perm[i])]));
      one_by_one();
    }
  };
  d == 1 ? each([](int64_t p) { return p; }) : each([d](int64_t p) { return p * d; });
}

// The inverse: column `column` of the entries [begin, end) of `out`.
template <class index_t, class T>
SPGRAD_INLINE void scatter_column(const Segments<index_t>& segments, const calc_t<T>* from,
                                  int64_t column, int64_t begin, int64_t end, T* out) {
  for (int64_t p = begin; p < end; ++p) {
    out[segments.place(p) + column] = narrow<T>(from[p - begin]);
  }
}

// Calls few(first, last) in parallel on ranges of segments that are not longer than kBlock, then
// one(i) on every longer segment, which one(i) splits. `cost` is the number of multiply-adds of a
// value.
template <class index_t, class Few, class One>
void for_segments(const Segments<index_t>& segments, int64_t cost, const Few& few, const One& one) {
  for_short_and_long(segments.ptr, segments.m, segments.kBlock, cost * segments.d, few, one);
}

// Calls f(i, j) on consecutive ranges of the segments [first, last), of at_once() entries or one
// segment each; on all segments at once if they do not need a buffer.
template <class index_t, class F>
SPGRAD_INLINE void for_buffers(const Segments<index_t>& segments, int64_t first, int64_t last,
                               bool buffered, const F& f) {
  for_batches(segments.ptr, first, last, segments.at_once(), f, !buffered);
}

// Calls f(block, begin, end) on blocks of the entries of segment i, in parallel, and returns their
// number. The length of a block does not depend on the number of threads.
template <class index_t, class F>
int64_t for_blocks(const Segments<index_t>& segments, int64_t i, const F& f) {
  const int64_t begin = segments.ptr[i], end = segments.ptr[i + 1], size = segments.at_once();
  const int64_t count = (end - begin + size - 1) / size;
  torch::stable::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      f(block, begin + block * size, std::min(begin + (block + 1) * size, end));
    }
  });
  return count;
}

// The segments of `nse` entries.
template <class index_t>
Segments<index_t> checked_segments(const Tensor& ptr, const std::optional<Tensor>& perm,
                                   int64_t nse, int64_t d) {
  check_view(ptr, ptr, std::nullopt);
  if (perm) {
    check_tensor(*perm, 1, ptr.scalar_type(), "perm");
    check_size(*perm, 0, nse, "perm");
  }
  const int64_t m = ptr.size(0) - 1, counted = data<index_t>(ptr)[m];
  STD_TORCH_CHECK(counted == nse, "spgrad: `ptr` counts ", counted, " entries, not ", nse, ".");
  return {.ptr = data<index_t>(ptr), .perm = data<index_t>(perm), .m = m, .d = d};
}

// The segments of the entries that have the values `val`, (nse,) or (nse, d).
template <class index_t>
Segments<index_t> checked_segments(const Tensor& ptr, const std::optional<Tensor>& perm,
                                   const Tensor& val, const char* name) {
  check_columns(val, name);
  return checked_segments<index_t>(ptr, perm, val.size(0), num_columns(val));
}

}  // namespace spgrad
