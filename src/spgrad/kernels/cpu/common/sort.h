// Sorts: a stable radix sort of keys that remember where they came from, and a sort of short lists.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "common/lanes.h"
#include "common/memory.h"
#include "common/threads.h"

namespace spgrad {

// Short lists are sorted by counting, for each element, how many elements are less. No branch
// depends on the elements, so none is mispredicted, and the code counts for a vector of elements
// at a time.

// The largest number of elements that is sorted by counting.
inline constexpr int64_t kCounted = 64;

// Elements that may be read beyond the end of a list.
inline constexpr int64_t kSlack = 16;

// Writes the elements of `from` (count,), distinct signed integers, to `to` in ascending order,
// which may be `from`. Reads up to kSlack elements beyond the end. O(count^2) time.
template <int kBytes, class T>
SPGRAD_INLINE void sort_by_counting(const T* from, int64_t count, T* to) {
  constexpr int64_t kLanes = kBytes / sizeof(T);
  using Keys = Vector<T, kLanes>;
  T keys[kCounted], places[kCounted];
  for (int64_t start = 0; start < count; start += kLanes) {
    Keys own, less{};
    std::memcpy(&own, from + start, sizeof own);
    for (int64_t i = 0; i < count; ++i) less -= own > from[i];  // true is -1
    opaque(
        own);  // else GCC 12 copies the keys by `rep movsq`, which takes longer than all the rest
    std::memcpy(keys + start, &own, sizeof own);
    std::memcpy(places + start, &less, sizeof less);
  }
  for (int64_t i = 0; i < count; ++i) to[places[i]] = keys[i];
}

// An entry in the sort: its key, and the position that it came from.
struct Wide {
  uint64_t key;
  int64_t position;
};

// The same in one word, if both fit in 63 bits: the key is in the bits above the position.
using Narrow = int64_t;

SPGRAD_INLINE uint64_t word(Wide entry) { return entry.key; }
SPGRAD_INLINE uint64_t word(Narrow entry) { return static_cast<uint64_t>(entry); }

// Bits of a digit. With more buckets, writes to memory would miss the first-level TLB. Entries
// that are in the cache allow more buckets.
inline constexpr int kDigitBits = 9, kCachedBits = 11;
inline constexpr int64_t kCached = 32768;  // entries that sort within the second-level cache
inline constexpr int64_t kInsertion = 24;  // entries below which counting costs more than comparing
inline constexpr int64_t kBucket = 16;     // entries that a digit should leave to a bucket

// Bits [shift, shift + width) of an entry's word.
struct Digit {
  int shift, width;

  int64_t count() const { return int64_t{1} << width; }
  template <class Entry>
  SPGRAD_INLINE int64_t operator()(Entry entry) const {
    return static_cast<int64_t>(word(entry) >> shift) & (count() - 1);
  }
};

// A stable scatter of the entries from(q) into `to` by a digit. Each chunk of entries counts its
// digits, then writes to its own places, so the result does not depend on the number of threads.
// `place` has a counter for each digit and chunk. In the end, the counters of the last chunk are
// the ends of the buckets.
template <class From, class Entry>
void scatter(const From& from, Entry* to, const Chunks& chunks, Digit digit, int64_t* place) {
  const int64_t digits = digit.count();
  chunks.for_each([&](int64_t chunk, int64_t begin, int64_t end) {
    int64_t* count = place + chunk * digits;
    std::fill_n(count, digits, 0);
    with_vectors([&]<int>() {
      for (int64_t q = begin; q < end; ++q) ++count[digit(from(q))];
    });
  });
  int64_t next = 0;
  for (int64_t bucket = 0; bucket < digits; ++bucket) {
    for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) {
      next += std::exchange(place[chunk * digits + bucket], next);
    }
  }
  chunks.for_each([&](int64_t chunk, int64_t begin, int64_t end) {
    int64_t* at = place + chunk * digits;
    with_vectors([&]<int>() {
      for (int64_t q = begin; q < end; ++q) {
        const Entry entry = from(q);
        const int64_t place = at[digit(entry)]++;
        __builtin_prefetch(to + place + 64 / sizeof(Entry), 1);  // the bucket's next cache line
        to[place] = entry;
      }
    });
  });
}

// A bucket of at most this many entries is not scattered further.
template <class Entry>
inline constexpr int64_t kFew = std::is_same_v<Entry, Narrow> ? kCounted : kInsertion;

// Sorts at most kFew entries stably by bits [low, high) of their words from `from` into `to`,
// which may be `from`. The entries have the same bits from `high` on. Narrow entries are compared
// as a whole, which gives the same order, because their positions ascend.
template <int kBytes>
SPGRAD_INLINE void sort_few(const Narrow* from, Narrow* to, int64_t count, int, int) {
  sort_by_counting<kBytes>(from, count, to);
}
template <int kBytes>
SPGRAD_INLINE void sort_few(const Wide* from, Wide* to, int64_t count, int low, int high) {
  const uint64_t below = high < 64 ? (uint64_t{1} << high) - 1 : ~uint64_t{0};
  const uint64_t mask = below >> low << low;
  for (int64_t q = 0; q < count; ++q) {
    const Wide entry = from[q];
    int64_t hole = q;
    for (; hole > 0 && (to[hole - 1].key & mask) > (entry.key & mask); --hole) {
      to[hole] = to[hole - 1];
    }
    to[hole] = entry;
  }
}

// Sorts `from` (count,) stably by bits [low, high) of its words, into `spare` (count,) or back into
// `from`, by the topmost digit in which they differ, then each bucket (Knuth, TAOCP 3, 5.2.5).
// Serial; O(count * digits) time.
template <class Entry>
void radix_sort(Entry* from, Entry* spare, int64_t count, int low, int high, bool into_spare) {
  if (count <= kFew<Entry>) {
    return with_vectors(
        [&]<int kBytes>() { sort_few<kBytes>(from, into_spare ? spare : from, count, low, high); });
  }
  uint64_t differing = ~uint64_t{0};
  if (count <= kCached) {
    differing = 0;
    for (int64_t q = 0; q < count; ++q) differing |= word(from[q]) ^ word(from[0]);
  }
  high = std::min<int>(high, std::bit_width(differing));
  if (low >= high) {
    if (into_spare) std::copy_n(from, count, spare);
    return;
  }
  const int most = count > kCached ? kDigitBits : kCachedBits;
  const int width = std::clamp<int>(std::bit_width(static_cast<uint64_t>(count / kBucket)), 1,
                                    std::min(most, high - low));
  const Digit digit{high - width, width};
  int64_t place[int64_t{1} << kCachedBits];
  scatter([from](int64_t q) { return from[q]; }, spare, Chunks(count, 1), digit, place);
  const auto for_buckets = [&](const auto& f) {
    for (int64_t bucket = 0, begin = 0; bucket < digit.count(); begin = place[bucket++]) {
      f(begin, place[bucket] - begin);
    }
  };
  with_vectors([&]<int kBytes>() {
    for_buckets([&](int64_t begin, int64_t size) {
      if (size > kFew<Entry>) return;
      sort_few<kBytes>(spare + begin, (into_spare ? spare : from) + begin, size, low, digit.shift);
    });
  });
  for_buckets([&](int64_t begin, int64_t size) {
    if (size <= kFew<Entry>) return;
    radix_sort(spare + begin, from + begin, size, low, digit.shift, !into_spare);
  });
}

// Sorts the entries from(q), which may be entries[q], into `entries` with a `scratch` as long, in
// parallel: one scatter by the top digit, then each thread sorts the buckets that start in its
// chunk.
template <class From, class Entry>
void parallel_radix_sort(const From& from, Entry* entries, Entry* scratch, const Chunks& chunks,
                         int low, int high) {
  const int64_t count = chunks.begin(chunks.count());
  if (count <= kCached) {
    for (int64_t q = 0; q < count; ++q) entries[q] = from(q);
    return radix_sort(entries, scratch, count, low, high, false);
  }
  const int width = std::min(kDigitBits, high - low);
  const Digit digit{high - width, width};
  List<int64_t> place(chunks.count() * digit.count());
  scatter(from, scratch, chunks, digit, place.data());
  const int64_t* ends = place.data() + (chunks.count() - 1) * digit.count();
  chunks.for_each([&](int64_t, int64_t first, int64_t last) {
    for (int64_t begin = 0, bucket = 0; bucket < digit.count(); begin = ends[bucket++]) {
      if (first <= begin && begin < last) {
        radix_sort(scratch + begin, entries + begin, ends[bucket] - begin, low, digit.shift, true);
      }
    }
  });
}

}  // namespace spgrad
