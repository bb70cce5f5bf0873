// Sorts and merges the entries of an uncoalesced COO structure.
#include <bit>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "radix_sort.h"

namespace spgrad {
namespace {

int bit_width(int64_t size) {
  return std::bit_width(static_cast<uint64_t>(size > 0 ? size - 1 : 0));
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
