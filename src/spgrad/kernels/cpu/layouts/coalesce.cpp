// Sorts and merges the entries of an uncoalesced COO structure.
#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/order.h"
#include "common/sort.h"
#include "common/threads.h"

namespace spgrad {
namespace {

int bit_width(int64_t size) {
  return std::bit_width(static_cast<uint64_t>(size > 0 ? size - 1 : 0));
}

// Bit fields with the index of an entry in each dimension, the first dimension topmost, so the
// order of the keys is the lexicographic order. Shifts extract indices from keys faster than
// divisions.
struct Fields {
  List<int> width, shift;
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
};

// The keys of the entries, of any number of dimensions.
template <class index_t>
struct Keys {
  const Coo<index_t>& coo;
  const Fields& fields;

  uint64_t operator()(int64_t p) const {
    uint64_t key = 0;
    for (int64_t dim = 0; dim < coo.d; ++dim) {
      key |= static_cast<uint64_t>(coo.at(dim, p)) << fields.shift[dim];
    }
    return key;
  }
  // Writes the indices of a key to out[dim * stride].
  void write(uint64_t key, index_t* out, int64_t stride) const {
    for (int64_t dim = 0; dim < coo.d; ++dim) {
      const uint64_t mask = (uint64_t{1} << fields.width[dim]) - 1;
      out[dim * stride] = static_cast<index_t>(key >> fields.shift[dim] & mask);
    }
  }
};

// The keys of the entries of a matrix, without the loops over dimensions.
template <class index_t>
struct MatrixKeys {
  const index_t *row, *column;
  int width;  // of a column

  SPGRAD_INLINE uint64_t operator()(int64_t p) const {
    return static_cast<uint64_t>(row[p]) << width | static_cast<uint64_t>(column[p]);
  }
  SPGRAD_INLINE void write(uint64_t key, index_t* out, int64_t stride) const {
    out[0] = static_cast<index_t>(key >> width);
    out[stride] = static_cast<index_t>(key & ((uint64_t{1} << width) - 1));
  }
};

// Memory for the entries in the sort, and for kSlack more that the sort reads and does not use.
template <class Entry>
class Scratch {
 public:
  Scratch(const Tensor& like, int64_t nse)
      : words_(empty(like, {nse * static_cast<int64_t>(sizeof(Entry) / sizeof(int64_t)) + kSlack},
                     ScalarType::Long)) {}

  Entry* get() { return static_cast<Entry*>(words_.mutable_data_ptr()); }

 private:
  Tensor words_;
};

// Numbers the runs of equal keys among sorted entries, and returns the indices (d, u) of the runs.
// split(q) splits sorted entry q into key and position; write(entry, out, u) writes the indices of
// an entry to out[dim * u]; emit(q, entry, run) is called for every entry, in order. O(d nse) time.
template <class index_t, class Split, class Write, class Emit>
Tensor merge(const Tensor& indices, const Chunks& chunks, const Split& split, const Write& write,
             const Emit& emit) {
  const int64_t nse = indices.size(1);
  const auto starts = [&](int64_t q) { return split(q - 1).key != split(q).key; };
  // Calls f(first, last) for the runs that start in a chunk.
  const auto for_runs = [&](int64_t begin, int64_t end, const auto& f) {
    while (0 < begin && begin < end && !starts(begin)) ++begin;
    while (begin < end && end < nse && !starts(end)) ++end;
    if (begin < end) with_vectors([&]<int>() { f(begin, end); });
  };
  List<int64_t> runs(chunks.count() + 1);
  chunks.for_each([&](int64_t chunk, int64_t begin, int64_t end) {
    for_runs(begin, end, [&](int64_t first, int64_t last) {
      int64_t count = 1;
      for (int64_t q = first + 1; q < last; ++q) count += starts(q);
      runs[chunk + 1] = count;
    });
  });
  std::partial_sum(runs.begin(), runs.end(), runs.begin());
  const int64_t u = runs.back();
  Tensor unique = empty(indices, {indices.size(0), u});
  index_t* out = mutable_data<index_t>(unique);
  emit.count(u);
  chunks.for_each([&](int64_t chunk, int64_t begin, int64_t end) {
    for_runs(begin, end, [&](int64_t first, int64_t last) {
      int64_t run = runs[chunk];
      for (int64_t q = first; q < last; ++q) {
        const Wide entry = split(q);
        run += q > first && starts(q);
        write(entry, out + run, u);  // again for every entry of the run, which saves a branch
        emit(q, entry, run);
      }
    });
  });
  return unique;
}

// Coalesces by keys of less than 64 bits. Entries hold the key in the bits from `low` on.
template <class index_t, class Entry, class Keys, class Make, class Split, class Emit>
Tensor coalesce_by_key(const Tensor& indices, const Keys& keys, int low, int high, const Make& make,
                       const Split& split, const Emit& emit) {
  const int64_t nse = indices.size(1);
  const Chunks chunks(nse);
  Scratch<Entry> memory(indices, nse);
  Entry* const entries = memory.get();
  const auto entry_at = [&](int64_t p) { return make(keys(p), p); };
  if (ascends(chunks, [&](int64_t p) { return keys(p - 1) > keys(p); })) {
    chunks.for_each([&](int64_t, int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) entries[p] = entry_at(p);
    });
  } else {
    Scratch<Entry> spare(indices, nse);
    parallel_radix_sort(entry_at, entries, spare.get(), chunks, low, high);
  }
  const auto write = [&](Wide entry, index_t* out, int64_t u) { keys.write(entry.key, out, u); };
  return merge<index_t>(indices, chunks, [&](int64_t q) { return split(entries[q]); }, write, emit);
}

// Coalesces indices whose keys would take 64 bits or more: sorts stably by each dimension, the last
// dimension first; then the rank of an entry among the distinct entries serves as its key.
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
    const auto entry_at = [=](int64_t q) { return entries[q]; };
    parallel_radix_sort(entry_at, entries, spare.get(), chunks, 0, fields.width[dim]);
  }
  uint64_t rank = 0;
  int64_t before = 0;  // position of the previous entry
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
  const auto write = [&](Wide entry, index_t* out, int64_t u) {
    for (int64_t dim = 0; dim < coo.d; ++dim) out[dim * u] = coo.at(dim, entry.position);
  };
  return merge<index_t>(indices, chunks, [&](int64_t q) { return entries[q]; }, write, emit);
}

// The distinct entries of indices (d, nse), d >= 1, in lexicographic order. Every index is inside
// its dimension of `size`. `emit` is called for every entry. Allocates two words an entry (four if
// keys and positions exceed 64 bits together). O(nse * bits of the size / 8) time, O(d nse) if the
// entries are sorted already; the result does not depend on the number of threads.
template <class Emit>
Tensor sorted_entries(const Tensor& indices, torch::headeronly::IntHeaderOnlyArrayRef size,
                      const Emit& emit) {
  check_tensor(indices, 2, indices.scalar_type(), "indices");
  check_size(indices, 0, static_cast<int64_t>(size.size()), "indices");
  const int64_t nse = indices.size(1);
  const Fields fields(size);
  const int low = bit_width(nse), bits = fields.total;
  Tensor unique;
  dispatch_index(indices.scalar_type(), [&]<class index_t>() {
    const Coo<index_t> coo{data<index_t>(indices), indices.size(0), nse};
    const auto by_key = [&](const auto& keys) {
      if (bits + low < 64) {
        const int64_t mask = (int64_t{1} << low) - 1;
        const auto make = [=](uint64_t key, int64_t p) {
          return static_cast<Narrow>(key << low | static_cast<uint64_t>(p));
        };
        const auto split = [=](Narrow entry) { return Wide{word(entry) >> low, entry & mask}; };
        return coalesce_by_key<index_t, Narrow>(indices, keys, low, low + bits, make, split, emit);
      }
      const auto make = [](uint64_t key, int64_t p) { return Wide{key, p}; };
      const auto split = [](Wide entry) { return entry; };
      return coalesce_by_key<index_t, Wide>(indices, keys, 0, bits, make, split, emit);
    };
    unique = bits >= 64 ? coalesce_by_dimension(indices, coo, fields, emit)
             : coo.d == 2
                 ? by_key(MatrixKeys<index_t>{coo.indices, coo.indices + nse, fields.width[1]})
                 : by_key(Keys<index_t>{coo, fields});
  });
  return unique;
}

// Writes, for every entry, the number of its run.
struct Groups {
  int64_t* group;  // (nse,)

  void count(int64_t) const {}
  SPGRAD_INLINE void operator()(int64_t, Wide entry, int64_t run) const {
    group[entry.position] = run;
  }
};

std::tuple<Tensor, Tensor> coalesce_op(const Tensor& indices,
                                       torch::headeronly::IntHeaderOnlyArrayRef size) {
  check_tensor(indices, 2, indices.scalar_type(), "indices");
  Tensor group = empty(indices, {indices.size(1)}, ScalarType::Long);
  Tensor unique = sorted_entries(indices, size, Groups{mutable_data<int64_t>(group)});
  return {unique, group};
}

// Writes the order of the entries and the beginnings of the runs; it writes both from front to
// back.
template <class position_t>
struct Runs {
  const Tensor& like;
  Tensor& ptr;                         // (u + 1,), allocated when u is known
  position_t* order;                   // (nse,)
  mutable position_t* ends = nullptr;  // of the runs, in `ptr`

  void count(int64_t u) const {
    constexpr bool kNarrow = sizeof(position_t) == 4;
    ptr = empty(like, {u + 1}, kNarrow ? ScalarType::Int : ScalarType::Long);
    mutable_data<position_t>(ptr)[0] = 0;
    ends = mutable_data<position_t>(ptr) + 1;
  }
  // Each entry of a run writes the end of the run, and the last entry overwrites the others, so no
  // branch is needed.
  SPGRAD_INLINE void operator()(int64_t q, Wide entry, int64_t run) const {
    ends[run] = static_cast<position_t>(q + 1);
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
                            Runs<position_t>{indices, ptr, mutable_data<position_t>(order)});
  });
  return {unique, ptr, order};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("coalesce", SPGRAD_BOX(&coalesce_op));
  m.impl("sort_coo", SPGRAD_BOX(&sort_coo_op));
}

}  // namespace spgrad
