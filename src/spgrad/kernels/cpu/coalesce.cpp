// Sorts and merges the entries of an uncoalesced COO structure.
#include <bit>
#include <limits>
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

// Memory for entries under the sort, in large pages where there are some.
template <class Entry>
class Scratch {
 public:
  Scratch(const Tensor& like, int64_t nse)
      : words_(empty(like, {nse * static_cast<int64_t>(sizeof(Entry) / sizeof(int64_t))},
                     ScalarType::Long)) {}

  Entry* get() { return static_cast<Entry*>(words_.mutable_data_ptr()); }

 private:
  Tensor words_;
};

// Numbers the runs of equal keys among sorted entries, and gives the indices (d, u) of the runs.
// `split(q)` takes sorted entry q apart into key and position; write(unique + g, u, entry) writes
// the indices of run g from its first entry; emit(q, entry, g, starts) is told of every entry, and
// whether the run starts with it. O(d nse) time.
template <class index_t, class Split, class Write, class Emit>
Tensor merge(const Tensor& indices, const Chunks& chunks, const Split& split, const Write& write,
             const Emit& emit) {
  std::vector<int64_t> runs(chunks.count() + 1);
  const auto key_before = [&](int64_t q) { return q == 0 ? ~uint64_t{0} : split(q - 1).key; };
  chunks.for_each([&](int64_t c, int64_t begin, int64_t end) {
    int64_t count = 0;
    uint64_t before = key_before(begin);
    for (int64_t q = begin; q < end; ++q) {
      count += std::exchange(before, split(q).key) != before;
    }
    runs[c + 1] = count;
  });
  std::partial_sum(runs.begin(), runs.end(), runs.begin());
  const int64_t u = runs.back();
  Tensor unique = empty(indices, {indices.size(0), u});
  index_t* out = mutable_data<index_t>(unique);
  emit.count(u);
  chunks.for_each([&](int64_t c, int64_t begin, int64_t end) {
    int64_t g = runs[c] - 1;
    uint64_t before = key_before(begin);
    for (int64_t q = begin; q < end; ++q) {
      const Wide entry = split(q);
      const bool starts = std::exchange(before, entry.key) != entry.key;
      g += starts;
      write(out + g, u, entry);  // once more for every other entry of the run: no branch
      emit(q, entry, g, starts);
    }
  });
  return unique;
}

// Keys of less than 64 bits, in entries that hold the key above `low` bits. Input that turns out
// sorted while the keys are formed is not sorted again.
template <class index_t, class Entry, class Make, class Split, class Emit>
Tensor coalesce_by_key(const Tensor& indices, const Coo<index_t>& coo, const Fields& fields,
                       int low, const Make& make, const Split& split, const Emit& emit) {
  const Chunks chunks(coo.nse);
  Scratch<Entry> memory(indices, coo.nse);
  Entry* const entries = memory.get();
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
    Scratch<Entry> spare(indices, coo.nse);
    parallel_radix_sort(entries, spare.get(), chunks, low, low + fields.total);
  }
  const auto write = [&](index_t* out, int64_t u, Wide entry) {
    for (int64_t dim = 0; dim < coo.d; ++dim) {
      const uint64_t mask = (uint64_t{1} << fields.width[dim]) - 1;
      out[dim * u] = static_cast<index_t>(entry.key >> fields.shift[dim] & mask);
    }
  };
  return merge<index_t>(indices, chunks, [&](int64_t q) { return split(entries[q]); }, write, emit);
}

// Indices whose keys would take 64 bits or more: one stable sort per dimension, the last dimension
// first, then the rank of an entry among the distinct ones serves as its key.
template <class index_t, class Emit>
Tensor coalesce_by_dimension(const Tensor& indices, const Coo<index_t>& coo, const Fields& fields,
                             const Emit& emit) {
  const Chunks chunks(coo.nse);
  Scratch<Wide> memory(indices, coo.nse), spare(indices, coo.nse);
  Wide* const entries = memory.get();
  for (int64_t p = 0; p < coo.nse; ++p) entries[p].position = p;
  for (int64_t dim = coo.d - 1; dim >= 0; --dim) {
    for (int64_t q = 0; q < coo.nse; ++q) {
      entries[q].key = static_cast<uint64_t>(coo.at(dim, entries[q].position));
    }
    parallel_radix_sort(entries, spare.get(), chunks, 0, fields.width[dim]);
  }
  uint64_t rank = 0;
  int64_t before = 0;  // the position of the entry before
  for (int64_t q = 0; q < coo.nse; ++q) {
    const int64_t position = entries[q].position;
    for (int64_t dim = 0; q > 0 && dim < coo.d; ++dim) {
      if (coo.at(dim, position) != coo.at(dim, before)) {
        ++rank;
        break;
      }
    }
    entries[q].key = rank;
    before = position;
  }
  const auto write = [&](index_t* out, int64_t u, Wide entry) {
    for (int64_t dim = 0; dim < coo.d; ++dim) out[dim * u] = coo.at(dim, entry.position);
  };
  return merge<index_t>(indices, chunks, [&](int64_t q) { return entries[q]; }, write, emit);
}

// The distinct entries of indices (d, nse), d >= 1, every index inside its dimension of `size`, in
// lexicographic order; `emit` is told which entries they are. Allocates two words an entry (four if
// keys and positions exceed 64 bits together). O(nse * bits of the size / 8) time, O(d nse) if the
// entries are sorted already; the result does not depend on the number of threads.
template <class Emit>
Tensor sorted_entries(const Tensor& indices, torch::headeronly::IntHeaderOnlyArrayRef size,
                      const Emit& emit) {
  check_tensor(indices, 2, indices.scalar_type(), "indices");
  check_size(indices, 0, static_cast<int64_t>(size.size()), "indices");
  const int64_t nse = indices.size(1);
  const Fields fields(size);
  const int low = bit_width(nse);
  Tensor unique;
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
      unique = coalesce_by_key<index_t, Narrow>(indices, coo, fields, low, make, split, emit);
    } else if (fields.total < 64) {
      const auto make = [](uint64_t key, int64_t p) { return Wide{key, p}; };
      const auto split = [](Wide entry) { return entry; };
      unique = coalesce_by_key<index_t, Wide>(indices, coo, fields, 0, make, split, emit);
    } else {
      unique = coalesce_by_dimension(indices, coo, fields, emit);
    }
  });
  return unique;
}

// Writes the number of its run for every entry.
struct Groups {
  int64_t* group;  // (nse,)

  void count(int64_t) const {}
  SPGRAD_INLINE void operator()(int64_t, Wide entry, int64_t g, bool) const {
    group[entry.position] = g;
  }
};

std::tuple<Tensor, Tensor> coalesce_op(const Tensor& indices,
                                       torch::headeronly::IntHeaderOnlyArrayRef size) {
  check_tensor(indices, 2, indices.scalar_type(), "indices");
  Tensor group = empty(indices, {indices.size(1)}, ScalarType::Long);
  Tensor unique = sorted_entries(indices, size, Groups{mutable_data<int64_t>(group)});
  return {unique, group};
}

// Writes the entries in order, and where the runs begin, which takes no access out of order.
template <class position_t>
struct Runs {
  const Tensor& like;
  int64_t nse;
  Tensor& ptr;                              // (u + 1,), made when u is known
  position_t* order;                        // (nse,)
  mutable position_t* starts_at = nullptr;  // those of ptr

  void count(int64_t u) const {
    constexpr bool kNarrow = sizeof(position_t) == 4;
    ptr = empty(like, {u + 1}, kNarrow ? ScalarType::Int : ScalarType::Long);
    starts_at = mutable_data<position_t>(ptr);
    starts_at[u] = static_cast<position_t>(nse);
  }
  SPGRAD_INLINE void operator()(int64_t q, Wide entry, int64_t g, bool starts) const {
    if (starts) starts_at[g] = static_cast<position_t>(q);
    order[q] = static_cast<position_t>(entry.position);
  }
};

std::tuple<Tensor, Tensor, Tensor> sort_coo_op(const Tensor& indices,
                                               torch::headeronly::IntHeaderOnlyArrayRef size) {
  check_tensor(indices, 2, indices.scalar_type(), "indices");
  const int64_t nse = indices.size(1);
  const bool narrow = nse <= std::numeric_limits<int32_t>::max();
  const ScalarType dtype = narrow ? ScalarType::Int : ScalarType::Long;
  Tensor ptr, order = empty(indices, {nse}, dtype), unique;
  dispatch_index(dtype, [&]<class position_t>() {
    unique = sorted_entries(indices, size,
                            Runs<position_t>{indices, nse, ptr, mutable_data<position_t>(order)});
  });
  return {unique, ptr, order};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("coalesce", TORCH_BOX(&coalesce_op));
  m.impl("sort_coo", TORCH_BOX(&sort_coo_op));
}

}  // namespace spgrad
