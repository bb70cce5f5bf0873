// Sorts and merges the entries of an uncoalesced COO structure.
#include <bit>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "dispatch.h"

namespace spgrad {
namespace {

// An entry under the sort: its key, and the position it came from.
struct Wide {
  uint64_t key;
  int64_t position;
};

// The same in one word where both fit: the key above `shift` bits of position.
using Narrow = uint64_t;

SPGRAD_INLINE uint64_t word(Wide entry) { return entry.key; }
SPGRAD_INLINE uint64_t word(Narrow entry) { return entry; }

int bit_width(int64_t size) {
  return std::bit_width(static_cast<uint64_t>(size > 0 ? size - 1 : 0));
}

// ---- radix sort ------------------------------------------------------------------------------

constexpr int kDigitBits = 9;  // more buckets at once would thrash the first-level TLB and cache
constexpr int64_t kDigits = int64_t{1} << kDigitBits;
constexpr int64_t kCached = 32768;  // entries that sort within the second-level cache
constexpr int64_t kInsertion = 24;  // entries below which counting costs more than comparing

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

// ---- keys ------------------------------------------------------------------------------------

// Bit fields that hold an entry's index in each dimension, the first dimension topmost, so that the
// order of the keys is the lexicographic order. Shifts take keys apart faster than divisions.
struct Fields {
  std::vector<int> width, shift;
  int total = 0;

  explicit Fields(torch::headeronly::IntHeaderOnlyArrayRef size)
      : width(size.size()), shift(size.size()) {
    for (int64_t dim = static_cast<int64_t>(size.size()) - 1; dim >= 0; --dim) {
      width[dim] = bit_width(size[dim]);
      shift[dim] = total;
      total += width[dim];
    }
  }
};

template <class index_t>
struct Coo {
  const index_t* indices;  // (d, nse), row-major
  int64_t d, nse;

  index_t at(int64_t dim, int64_t p) const { return indices[dim * nse + p]; }

  uint64_t key(const Fields& fields, int64_t p) const {
    uint64_t key = 0;
    for (int64_t dim = 0; dim < d; ++dim) {
      key |= static_cast<uint64_t>(at(dim, p)) << fields.shift[dim];
    }
    return key;
  }
};

// ---- merging ---------------------------------------------------------------------------------

// Numbers the runs of equal keys among sorted entries: group[position] of each entry, and unique
// (d, u), filled by write(unique + g, u, entry) from the first entry of run g. `split(q)`
// takes sorted entry q apart into key and position. O(d nse) time.
template <class index_t, class Split, class Write>
Tensor merge(const Tensor& indices, const Chunks& chunks, int64_t* group, const Split& split,
             const Write& write) {
  const auto starts_run = [&](int64_t q) { return q == 0 || split(q).key != split(q - 1).key; };
  std::vector<int64_t> runs(chunks.count() + 1);
  chunks.for_each([&](int64_t c, int64_t begin, int64_t end) {
    int64_t count = 0;
    for (int64_t q = begin; q < end; ++q) count += starts_run(q);
    runs[c + 1] = count;
  });
  std::partial_sum(runs.begin(), runs.end(), runs.begin());
  const int64_t u = runs.back();
  Tensor unique = empty(indices, {indices.size(0), u});
  index_t* out = mutable_data<index_t>(unique);
  chunks.for_each([&](int64_t c, int64_t begin, int64_t end) {
    int64_t g = runs[c] - 1;
    for (int64_t q = begin; q < end; ++q) {
      const Wide entry = split(q);
      if (starts_run(q)) write(out + ++g, u, entry);
      group[entry.position] = g;
    }
  });
  return unique;
}

// Keys of less than 64 bits, in entries that hold the key above `low` bits. Input that turns out
// sorted while the keys are formed is not sorted again.
template <class index_t, class Entry, class Make, class Split>
Tensor coalesce_by_key(const Tensor& indices, const Coo<index_t>& coo, const Fields& fields,
                       int low, int64_t* group, const Make& make, const Split& split) {
  const Chunks chunks(coo.nse);
  auto entries = std::make_unique_for_overwrite<Entry[]>(coo.nse);
  std::vector<char> sorted(chunks.count());
  chunks.for_each([&](int64_t c, int64_t begin, int64_t end) {
    uint64_t before = begin == 0 ? 0 : coo.key(fields, begin - 1);
    bool ascending = true;
    for (int64_t p = begin; p < end; ++p) {
      const uint64_t key = coo.key(fields, p);
      ascending &= before <= key;
      before = key;
      entries[p] = make(key, p);
    }
    sorted[c] = ascending;
  });
  if (!std::all_of(sorted.begin(), sorted.end(), [](char flag) { return flag; })) {
    auto scratch = std::make_unique_for_overwrite<Entry[]>(coo.nse);
    parallel_radix_sort(entries.get(), scratch.get(), chunks, low, low + fields.total);
  }
  const auto write = [&](index_t* out, int64_t u, Wide entry) {
    for (int64_t dim = 0; dim < coo.d; ++dim) {
      const uint64_t mask = (uint64_t{1} << fields.width[dim]) - 1;
      out[dim * u] = static_cast<index_t>(entry.key >> fields.shift[dim] & mask);
    }
  };
  return merge<index_t>(
      indices, chunks, group, [&](int64_t q) { return split(entries[q]); }, write);
}

// Indices whose keys would take 64 bits or more: one stable sort per dimension, the last dimension
// first, then the rank of an entry among the distinct ones serves as its key.
template <class index_t>
Tensor coalesce_by_dimension(const Tensor& indices, const Coo<index_t>& coo, const Fields& fields,
                             int64_t* group) {
  const Chunks chunks(coo.nse);
  auto entries = std::make_unique_for_overwrite<Wide[]>(coo.nse);
  auto scratch = std::make_unique_for_overwrite<Wide[]>(coo.nse);
  for (int64_t p = 0; p < coo.nse; ++p) entries[p].position = p;
  for (int64_t dim = coo.d - 1; dim >= 0; --dim) {
    for (int64_t q = 0; q < coo.nse; ++q) {
      entries[q].key = static_cast<uint64_t>(coo.at(dim, entries[q].position));
    }
    parallel_radix_sort(entries.get(), scratch.get(), chunks, 0, fields.width[dim]);
  }
  uint64_t rank = 0;
  for (int64_t q = 0; q < coo.nse; ++q) {
    for (int64_t dim = 0; q > 0 && dim < coo.d; ++dim) {
      if (coo.at(dim, entries[q].position) != coo.at(dim, entries[q - 1].position)) {
        ++rank;
        break;
      }
    }
    entries[q].key = rank;
  }
  const auto write = [&](index_t* out, int64_t u, Wide entry) {
    for (int64_t dim = 0; dim < coo.d; ++dim) out[dim * u] = coo.at(dim, entry.position);
  };
  return merge<index_t>(indices, chunks, group, [&](int64_t q) { return entries[q]; }, write);
}

// The distinct entries of indices (d, nse), d >= 1, every index inside its dimension of `size`, in
// lexicographic order, and the number of the distinct entry that each entry became. Allocates two
// words an entry (four if keys and positions exceed 64 bits together). O(nse * bits of the size
// / 8) time, O(d nse) if the entries are sorted already; the result does not depend on the number
// of threads.
std::tuple<Tensor, Tensor> coalesce_op(const Tensor& indices,
                                       torch::headeronly::IntHeaderOnlyArrayRef size) {
  check_tensor(indices, 2, indices.scalar_type(), "indices");
  check_size(indices, 0, static_cast<int64_t>(size.size()), "indices");
  const int64_t nse = indices.size(1);
  Tensor group = empty(indices, {nse}, ScalarType::Long), unique;
  int64_t* groups = mutable_data<int64_t>(group);
  const Fields fields(size);
  const int low = bit_width(nse);
  dispatch_index(indices.scalar_type(), [&]<class index_t>() {
    const Coo<index_t> coo{data<index_t>(indices), indices.size(0), nse};
    if (fields.total + low < 64) {
      const uint64_t mask = (uint64_t{1} << low) - 1;
      const auto make = [&](uint64_t key, int64_t p) {
        return key << low | static_cast<uint64_t>(p);
      };
      const auto split = [&](Narrow entry) {
        return Wide{entry >> low, static_cast<int64_t>(entry & mask)};
      };
      unique = coalesce_by_key<index_t, Narrow>(indices, coo, fields, low, groups, make, split);
    } else if (fields.total < 64) {
      const auto make = [](uint64_t key, int64_t p) { return Wide{key, p}; };
      const auto split = [](Wide entry) { return entry; };
      unique = coalesce_by_key<index_t, Wide>(indices, coo, fields, 0, groups, make, split);
    } else {
      unique = coalesce_by_dimension(indices, coo, fields, groups);
    }
  });
  return {unique, group};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) { m.impl("coalesce", TORCH_BOX(&coalesce_op)); }

}  // namespace spgrad
