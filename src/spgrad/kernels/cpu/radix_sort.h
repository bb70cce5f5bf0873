// A stable radix sort of keys that remember where they came from.
#pragma once

#include <utility>
#include <vector>

#include "dispatch.h"

namespace spgrad {

// An entry under the sort: its key, and the position it came from.
struct Wide {
  uint64_t key;
  int64_t position;
};

// The same in one word where both fit: the key above `shift` bits of position.
using Narrow = uint64_t;

SPGRAD_INLINE uint64_t word(Wide entry) { return entry.key; }
SPGRAD_INLINE uint64_t word(Narrow entry) { return entry; }

inline constexpr int kDigitBits =
    9;  // more buckets at once would thrash the first-level TLB and cache
inline constexpr int64_t kDigits = int64_t{1} << kDigitBits;
inline constexpr int64_t kCached = 32768;  // entries that sort within the second-level cache
inline constexpr int64_t kInsertion = 24;  // entries below which counting costs more than comparing

// A stable scatter of `from` into `to` by kDigitBits bits from `shift` on. Each chunk of entries
// counts its digits, then writes to its own places, so that the threads leave no trace in the
// result. `place` has kDigits counters a chunk; those of the last chunk are left at the buckets'
// ends.
template <class Entry>
void scatter(const Entry* from, Entry* to, const Chunks& chunks, int shift, int64_t* place) {
  const auto digit = [shift](Entry entry) { return (word(entry) >> shift) % kDigits; };
  chunks.for_each([&](int64_t c, int64_t begin, int64_t end) {
    int64_t* count = place + c * kDigits;
    std::fill_n(count, kDigits, 0);
    for (int64_t q = begin; q < end; ++q) ++count[digit(from[q])];
  });
  int64_t next = 0;
  for (int64_t bucket = 0; bucket < kDigits; ++bucket) {
    for (int64_t c = 0; c < chunks.count(); ++c) {
      next += std::exchange(place[c * kDigits + bucket], next);
    }
  }
  chunks.for_each([&](int64_t c, int64_t begin, int64_t end) {
    int64_t* at = place + c * kDigits;
    for (int64_t q = begin; q < end; ++q) {
      const Entry entry = from[q];
      to[at[digit(entry)]++] = entry;
    }
  });
}

// Stable insertion sort by the bits of `mask`.
template <class Entry>
void insertion_sort(Entry* entries, int64_t count, uint64_t mask) {
  for (int64_t q = 1; q < count; ++q) {
    const Entry entry = entries[q];
    int64_t hole = q;
    for (; hole > 0 && (word(entries[hole - 1]) & mask) > (word(entry) & mask); --hole) {
      entries[hole] = entries[hole - 1];
    }
    entries[hole] = entry;
  }
}

// Sorts `from` (count,) stably by bits [low, high) of its words, into `spare` (count,) or back into
// `from`. By the top digit until the buckets fit in the cache, from there by the lowest digit first
// (Knuth, TAOCP 3, 5.2.5), so that few passes run at the speed of the memory. Serial;
// O(count * digits) time.
template <class Entry>
void radix_sort(Entry* from, Entry* spare, int64_t count, int low, int high, bool into_spare) {
  int64_t place[kDigits];
  const Chunks serial(count, 1);
  if (count > kCached && high - low > kDigitBits) {
    const int shift = high - kDigitBits;
    scatter(from, spare, serial, shift, place);
    for (int64_t begin = 0, bucket = 0; bucket < kDigits; begin = place[bucket++]) {
      radix_sort(spare + begin, from + begin, place[bucket] - begin, low, shift, !into_spare);
    }
    return;
  }
  if (count <= kInsertion && low < high) {
    insertion_sort(from, count, (~uint64_t{0} >> (64 - high)) >> low << low);
    low = high;
  }
  for (; low < high; low += kDigitBits, into_spare = !into_spare) {
    scatter(from, spare, serial, low, place);
    std::swap(from, spare);
  }
  if (into_spare) std::copy(from, from + count, spare);
}

// Sorts all of `entries` in place with a `scratch` as long, in parallel: one scatter by the top
// digit, then each thread sorts the buckets that start in its chunk.
template <class Entry>
void parallel_radix_sort(Entry* entries, Entry* scratch, const Chunks& chunks, int low, int high) {
  if (chunks.count() == 1) {
    return radix_sort(entries, scratch, chunks.begin(1), low, high, false);
  }
  const int shift = std::max(low, high - kDigitBits);
  std::vector<int64_t> place(chunks.count() * kDigits);
  scatter(entries, scratch, chunks, shift, place.data());
  const int64_t* ends = place.data() + (chunks.count() - 1) * kDigits;
  chunks.for_each([&](int64_t, int64_t first, int64_t last) {
    for (int64_t begin = 0, bucket = 0; bucket < kDigits; begin = ends[bucket++]) {
      if (first <= begin && begin < last) {
        radix_sort(scratch + begin, entries + begin, ends[bucket] - begin, low, shift, true);
      }
    }
  });
}

}  // namespace spgrad
