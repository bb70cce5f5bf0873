// The order of the elements of each segment by value, and the first of each segment.
#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <tuple>
#include <type_traits>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/sort.h"
#include "common/threads.h"
#include "reductions/segments.h"

namespace spgrad {
namespace {

// Unsigned integers in the order of the values of T; NaN counts as the largest, and -0 as 0.
template <class T>
using key_t = std::conditional_t<sizeof(calc_t<T>) == 8, uint64_t, uint32_t>;

template <class T>
SPGRAD_INLINE key_t<T> ascending_key(T value) {
  using Key = key_t<T>;
  constexpr Key kTop = Key{1} << (8 * sizeof(Key) - 1);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<Key>(value) ^ kTop;
  } else {
    const calc_t<T> wide = widen(value) + calc_t<T>{0};  // -0 becomes 0
    const Key bits = std::bit_cast<Key>(wide);
    const Key ordered = bits ^ ((bits & kTop) != 0 ? ~Key{0} : kTop);
    return wide != wide ? ~Key{0} : ordered;
  }
}

// The values (count, d) of one column of a segment, the first at `val`.
template <class T>
struct Line {
  const T* val;
  int64_t count, d;

  SPGRAD_INLINE T operator[](int64_t q) const { return val[q * d]; }
};

// How the values of a line become entries of the sort. Keys of 32 bits share a word with the
// position, if the position fits in 31 bits.
template <class T, class Entry>
struct Ranks {
  static constexpr int kLow = std::is_same_v<Entry, Narrow> ? 31 : 0;
  static constexpr int kHigh = std::is_same_v<Entry, Narrow> ? 63 : 8 * sizeof(key_t<T>);

  const Line<T>& line;
  bool descending;

  // Equal values stay in order in both directions.
  SPGRAD_INLINE Entry operator()(int64_t q) const {
    const key_t<T> ascending = ascending_key(line[q]);
    const auto key =
        static_cast<uint64_t>(descending ? static_cast<key_t<T>>(~ascending) : ascending);
    if constexpr (std::is_same_v<Entry, Narrow>) {
      return static_cast<Narrow>(key << kLow) | q;
    } else {
      return {.key = key, .position = q};
    }
  }
};

SPGRAD_INLINE int64_t position_of(Narrow entry) { return entry & 0x7fffffff; }
SPGRAD_INLINE int64_t position_of(const Wide& entry) { return entry.position; }

template <class T>
using Short = std::conditional_t<sizeof(key_t<T>) == 4, Narrow, Wide>;

// Lines of up to this many elements are sorted on the stack by one thread.
constexpr int64_t kShortLine = 1024;

// Calls f(i, j, line, sorted) for column j of every segment i, where `sorted` has the entries of
// the line in order: position_of(sorted[r]) is the position, in the segment, of its r-th element.
// The order depends on the line alone. O(nse d log nse) time.
template <class index_t, class T, class F>
void for_sorted(const index_t* ptr, int64_t m, const T* val, int64_t d, bool descending,
                const F& f) {
  const auto line_of = [&](int64_t i, int64_t j) {
    return Line<T>{
        .val = val + int64_t{ptr[i]} * d + j, .count = int64_t{ptr[i + 1]} - ptr[i], .d = d};
  };
  const auto few = [&](int64_t first, int64_t last) {
    using Entry = Short<T>;
    Entry entries[kShortLine + kSlack], scratch[kShortLine + kSlack];
    for (int64_t i = first; i < last; ++i) {
      for (int64_t j = 0; j < d; ++j) {
        const Line<T> line = line_of(i, j);
        const Ranks<T, Entry> rank{.line = line, .descending = descending};
        for (int64_t q = 0; q < line.count; ++q) entries[q] = rank(q);
        radix_sort(entries, scratch, line.count, rank.kLow, rank.kHigh, false);
        f(i, j, line, static_cast<const Entry*>(entries));
      }
    }
  };
  const auto sort_one = [&]<class Entry>(int64_t i) {
    for (int64_t j = 0; j < d; ++j) {
      const Line<T> line = line_of(i, j);
      const Ranks<T, Entry> rank{.line = line, .descending = descending};
      const auto entries = array<Entry>(line.count + kSlack);
      const auto scratch = array<Entry>(line.count + kSlack);
      parallel_radix_sort(rank, entries.get(), scratch.get(), Chunks(line.count), rank.kLow,
                          rank.kHigh);
      f(i, j, line, static_cast<const Entry*>(entries.get()));
    }
  };
  const auto one = [&](int64_t i) {
    const bool narrow = line_of(i, 0).count <= std::numeric_limits<int32_t>::max();
    narrow ? sort_one.template operator()<Short<T>>(i) : sort_one.template operator()<Wide>(i);
  };
  for_short_and_long(ptr, m, kShortLine, 8 * d, few, one);
}

Tensor segment_order(const Tensor& ptr, const Tensor& val, bool descending) {
  check_columns(val, "val");
  Tensor order = empty_columns(val, val.size(0), ScalarType::Long);
  dispatch_ordered(ptr.scalar_type(), val.scalar_type(), [&]<class index_t, class T>() {
    const auto segments = checked_segments<index_t>(ptr, std::nullopt, val, "val");
    const int64_t d = segments.d;
    int64_t* const out = mutable_data<int64_t>(order);
    for_sorted(segments.ptr, segments.m, data<T>(val), d, descending,
               [&](int64_t i, int64_t j, const Line<T>& line, const auto* sorted) {
                 const int64_t begin = segments.ptr[i];
                 for (int64_t r = 0; r < line.count; ++r) {
                   out[(begin + r) * d + j] = begin + position_of(sorted[r]);
                 }
               });
  });
  return order;
}

// The first k elements of a line of `size` places, of which some have an element. The others count
// as zeros, unless `specified`.
struct First {
  int64_t size, k;
  bool largest, specified;

  // Writes the place of each, and its position in the line. `where` has the places of the elements,
  // ascending. The position of a zero without an element is -1, and so are both numbers where the
  // elements do not suffice. O(count + k) time.
  template <class T, class Entry>
  SPGRAD_INLINE void operator()(const Line<T>& line, const Entry* sorted, const int64_t* where,
                                int64_t* place, int64_t* position) const {
    int64_t rank = 0;
    const auto take = [&](int64_t q) {
      place[rank] = where[q];
      position[rank++] = q;
    };
    const int64_t most = std::min(k, line.count);
    while (rank < most && (specified || comes_first(line[position_of(sorted[rank])]))) {
      take(position_of(sorted[rank]));
    }
    if (specified) {
      std::fill(place + rank, place + k, -1);
      std::fill(position + rank, position + k, -1);
      return;
    }
    int64_t next = rank;  // in `sorted`, the first behind the zeros
    for (int64_t at = 0, q = 0; at < size && rank < k; ++at) {
      const bool there = q < line.count && where[q] == at;
      const bool zero = !there || number(line[q]) == 0;
      if (there && zero) {
        take(q);
        ++next;
      } else if (zero) {
        place[rank] = at;
        position[rank++] = -1;
      }
      q += there;
    }
    while (rank < k) take(position_of(sorted[next++]));
  }

 private:
  template <class T>
  static SPGRAD_INLINE calc_t<T> number(T value) {
    return static_cast<calc_t<T>>(widen(value));
  }
  // Whether a value comes before 0. NaN is the largest.
  template <class T>
  SPGRAD_INLINE bool comes_first(T value) const {
    return largest ? !(number(value) <= 0) : number(value) < 0;
  }
};

std::tuple<Tensor, Tensor> segment_top(const Tensor& ptr, const Tensor& val, const Tensor& where,
                                       int64_t size, int64_t k, bool largest, bool specified) {
  check_tensor(val, 1, val.scalar_type(), "val");
  check_tensor(where, 1, ScalarType::Long, "where");
  check_size(where, 0, val.size(0), "where");
  STD_TORCH_CHECK(0 <= k && k <= size, "spgrad: `k` is ", k, ", not 0 to ", size, ".");
  const int64_t m = ptr.size(0) - 1;
  Tensor places = empty(where, {m, k}), entries = empty(where, {m, k});
  dispatch_ordered(ptr.scalar_type(), val.scalar_type(), [&]<class index_t, class T>() {
    const auto segments = checked_segments<index_t>(ptr, std::nullopt, val, "val");
    const First first{.size = size, .k = k, .largest = largest, .specified = specified};
    const int64_t* const at = data<int64_t>(where);
    int64_t *const place = mutable_data<int64_t>(places), *entry = mutable_data<int64_t>(entries);
    for_sorted(segments.ptr, m, data<T>(val), 1, largest,
               [&](int64_t i, int64_t, const Line<T>& line, const auto* sorted) {
                 const int64_t begin = segments.ptr[i];
                 first(line, sorted, at + begin, place + i * k, entry + i * k);
                 for (int64_t r = i * k; r < (i + 1) * k; ++r) entry[r] += entry[r] < 0 ? 0 : begin;
               });
  });
  return {places, entries};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("segment_order", SPGRAD_BOX(&segment_order));
  m.impl("segment_top", SPGRAD_BOX(&segment_top));
}

}  // namespace spgrad
