// Kernels that make new lines of old ones: ranges joined, triangles, Kronecker products.
#include <bit>
#include <limits>
#include <tuple>

#include "common/dispatch.h"
#include "common/payload.h"

namespace spgrad {
namespace {

// ---- ranges ----------------------------------------------------------------------------------

// Ranges of entries [begin[j], end[j]), which stand one behind the other from ptr[j] on; of each
// the last entry first if `backward`.
template <class index_t>
struct Ranges {
  const index_t *begin, *end, *ptr;
  int64_t nse;  // entries to choose from
  bool backward;

  static constexpr int64_t kTogether = 8;

  // Asks for the first elements, of `size` each, of a range some ranges after j: ranges in any
  // order are a cache miss each.
  template <class T>
  SPGRAD_INLINE void prefetch(const T* in, int64_t size, int64_t j, int64_t last) const {
    constexpr int64_t kAhead = 12, kLine = 64 / sizeof(T);
    if (backward || j + kAhead >= last) return;
    const T* from = in + begin[j + kAhead] * size;
    __builtin_prefetch(from);
    if ((end[j + kAhead] - begin[j + kAhead]) * size > kLine) __builtin_prefetch(from + kLine);
  }

  // Calls some(p, q) where entries p, p + 1 ... of a range go to q, q + 1 ..., kTogether at a time,
  // and one(p, q) for the rest. A few entries at a time, some of them in vain, are quicker than
  // just as many as there are: what is too much the next range writes over.
  template <class Some, class One>
  SPGRAD_INLINE void visit(int64_t j, int64_t writable, const Some& some, const One& one) const {
    int64_t q = ptr[j];
    const int64_t first = begin[j], stop = end[j];
    if (backward) {
      for (int64_t p = stop - 1; p >= first; --p, ++q) one(p, q);
      return;
    }
    int64_t p = first;
    for (; p < stop && p <= nse - kTogether && q <= writable; p += kTogether, q += kTogether) {
      some(p, q);
    }
    for (; p < stop; ++p, ++q) one(p, q);
  }
};

template <class index_t>
Ranges<index_t> check_ranges(const Tensor& begin, const Tensor& end, const Tensor& ptr, int64_t nse,
                             bool backward) {
  check_tensor(begin, 1, ptr.scalar_type(), "begin");
  check_tensor(end, 1, ptr.scalar_type(), "end");
  check_tensor(ptr, 1, ptr.scalar_type(), "ptr");
  check_size(end, 0, begin.size(0), "end");
  check_size(ptr, 0, begin.size(0) + 1, "ptr");
  return {data<index_t>(begin), data<index_t>(end), data<index_t>(ptr), nse, backward};
}

// Pointers (s + 1,) to ranges [begin[j], end[j]) that stand one behind the other.
template <class index_t>
int64_t point(const index_t* begin, const index_t* end, int64_t ranges, index_t* ptr) {
  int64_t next = 0;
  for (int64_t j = 0; j < ranges; ++j) {
    ptr[j] = static_cast<index_t>(next);
    next += std::max<int64_t>(int64_t{end[j]} - begin[j], 0);
  }
  ptr[ranges] = static_cast<index_t>(next);
  return next;
}

// idx (nse,), begin and end (s,) of entries of idx, shift (r,) with r >= 1, `count` entries in all.
// Ranges may overlap and come in any order. O(s + count) time; nothing but the result is allocated,
// and it does not depend on the number of threads.
std::tuple<Tensor, Tensor> join_ranges_op(const Tensor& idx, const Tensor& begin, const Tensor& end,
                                          const Tensor& shift, int64_t count, bool backward) {
  const ScalarType dtype = idx.scalar_type();
  check_tensor(idx, 1, dtype, "idx");
  check_tensor(shift, 1, dtype, "shift");
  const int64_t ranges = begin.size(0), period = shift.size(0);
  STD_TORCH_CHECK(period >= 1, "spgrad: `shift` is empty.");
  check_fits(dtype, count);
  Tensor ptr = empty(idx, {ranges + 1}), made = empty(idx, {count});
  dispatch_index(dtype, [&]<class index_t>() {
    const auto of = check_ranges<index_t>(begin, end, ptr, idx.size(0), backward);
    const int64_t found = point(of.begin, of.end, ranges, mutable_data<index_t>(ptr));
    STD_TORCH_CHECK(found == count, "spgrad: the ranges hold ", found, " entries, not ", count,
                    ".");
    const index_t *in = data<index_t>(idx), *shifts = data<index_t>(shift);
    index_t* const out = mutable_data<index_t>(made);
    parallel_rows(of.ptr, ranges, 1, [&](int64_t first, int64_t last) {
      const int64_t writable = of.ptr[last] - of.kTogether;
      for (int64_t j = first; j < last; ++j) {
        const index_t more = period == 1 ? shifts[0] : shifts[j % period];
        of.prefetch(in, 1, j, last);
        of.visit(
            j, writable,
            [&](int64_t p, int64_t q) {
              for (int64_t l = 0; l < of.kTogether; ++l) out[q + l] = in[p + l] + more;
            },
            [&](int64_t p, int64_t q) { out[q] = backward ? more - in[p] : in[p] + more; });
      }
    });
  });
  return {ptr, made};
}

// out (ptr[s],) or (ptr[s], d), of elements of any type. O(s + d ptr[s]) time.
Tensor take_ranges_op(const Tensor& val, const Tensor& ptr, const Tensor& begin, const Tensor& end,
                      int64_t count, bool backward) {
  STD_TORCH_CHECK(val.dim() == 1 || val.dim() == 2, "spgrad: `val` has ", val.dim(),
                  " dimensions, not 1 or 2.");
  check_tensor(val, val.dim(), val.scalar_type(), "val");
  const int64_t ranges = begin.size(0), d = val.dim() == 2 ? val.size(1) : 1;
  Tensor made = val.dim() == 2 ? empty(val, {count, d}) : empty(val, {count});
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    const auto of = check_ranges<index_t>(begin, end, ptr, val.size(0), backward);
    STD_TORCH_CHECK(of.ptr[ranges] == count, "spgrad: the ranges hold ", of.ptr[ranges],
                    " entries, not ", count, ".");
    dispatch_size(val.element_size(), [&]<class T>() {
      const T* const in = data<T>(val);
      T* const out = mutable_data<T>(made);
      const auto copy = [&](int64_t p, int64_t q, int64_t entries) {
        std::copy_n(in + p * d, entries * d, out + q * d);
      };
      parallel_rows(of.ptr, ranges, d, [&](int64_t first, int64_t last) {
        const int64_t writable = of.ptr[last] - of.kTogether;
        for (int64_t j = first; j < last; ++j) {
          of.prefetch(in, d, j, last);
          if (d == 1) {
            of.visit(
                j, writable,
                [&](int64_t p, int64_t q) { std::copy_n(in + p, of.kTogether, out + q); },
                [&](int64_t p, int64_t q) { out[q] = in[p]; });
          } else if (backward) {
            of.visit(
                j, writable, [](int64_t, int64_t) {}, [&](int64_t p, int64_t q) { copy(p, q, 1); });
          } else {
            copy(of.begin[j], of.ptr[j], std::max<int64_t>(of.end[j] - of.begin[j], 0));
          }
        }
      });
    });
  });
  return made;
}

// For every line, the first entry whose index is bound[i] or more; its end if there is none. Lines
// ascend. cut (m,) preallocated. O(m log(longest line)) time.
Tensor cut_lines_op(const Tensor& ptr, const Tensor& idx, const Tensor& bound) {
  check_view(ptr, idx, std::nullopt);
  check_tensor(bound, 1, ScalarType::Long, "bound");
  const int64_t m = ptr.size(0) - 1;
  check_size(bound, 0, m, "bound");
  Tensor cut = empty(ptr, {m});
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    const index_t *starts = data<index_t>(ptr), *indices = data<index_t>(idx);
    const int64_t* bounds = data<int64_t>(bound);
    index_t* out = mutable_data<index_t>(cut);
    parallel_entries(m, 16, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const index_t* found =
            std::lower_bound(indices + starts[i], indices + starts[i + 1], bounds[i]);
        out[i] = static_cast<index_t>(found - indices);
      }
    });
  });
  return cut;
}

// ---- Kronecker product -----------------------------------------------------------------------

// Line (i, r) of the product lists, for every entry p of line i of a, all entries q of line r of b:
// as entry p * nse_b + q, of index idx_a[p] * across + idx_b[q].
template <class index_t>
struct Kron {
  const index_t *ptr_a, *idx_a, *ptr_b, *idx_b;
  int64_t m_a, m_b, nse_b, across;
  index_t *ptr, *idx, *entry;

  void point() const {
    int64_t next = 0, line = 0;
    for (int64_t i = 0; i < m_a; ++i) {
      const int64_t length = int64_t{ptr_a[i + 1]} - ptr_a[i];
      for (int64_t r = 0; r < m_b; ++r) {
        ptr[line++] = static_cast<index_t>(next);
        next += length * (ptr_b[r + 1] - ptr_b[r]);
      }
    }
    ptr[line] = static_cast<index_t>(next);
  }

  void fill(int64_t first, int64_t last) const {
    int64_t t = ptr[first], i = first / m_b, r = first % m_b;
    for (int64_t line = first; line < last; ++line) {
      const int64_t begin = ptr_b[r], end = ptr_b[r + 1];
      for (int64_t p = ptr_a[i]; p < ptr_a[i + 1]; ++p) {
        const int64_t base = idx_a[p] * across, number = p * nse_b;
        for (int64_t q = begin; q < end; ++q, ++t) {
          idx[t] = static_cast<index_t>(base + idx_b[q]);
          entry[t] = static_cast<index_t>(number + q);
        }
      }
      if (++r == m_b) {
        r = 0;
        ++i;
      }
    }
  }
};

// Lines of a (m_a + 1,) and of b (m_b + 1,) in any order, indices of b below `across`. The index
// type holds the products of sizes and of entries. O(m_a m_b + result) time; nothing but the
// result is allocated.
std::tuple<Tensor, Tensor, Tensor> kron_lines_op(const Tensor& ptr_a, const Tensor& idx_a,
                                                 const Tensor& ptr_b, const Tensor& idx_b,
                                                 int64_t across) {
  check_view(ptr_a, idx_a, std::nullopt);
  check_view(ptr_b, idx_b, std::nullopt);
  check_tensor(ptr_b, 1, ptr_a.scalar_type(), "ptr_b");
  const int64_t m_a = ptr_a.size(0) - 1, m_b = ptr_b.size(0) - 1;
  const int64_t total = idx_a.size(0) * idx_b.size(0);
  check_fits(ptr_a.scalar_type(), total);
  Tensor ptr = empty(ptr_a, {m_a * m_b + 1}), idx = empty(ptr_a, {total});
  Tensor entry = empty(ptr_a, {total});
  dispatch_index(ptr_a.scalar_type(), [&]<class index_t>() {
    const Kron<index_t> work{data<index_t>(ptr_a),
                             data<index_t>(idx_a),
                             data<index_t>(ptr_b),
                             data<index_t>(idx_b),
                             m_a,
                             m_b,
                             idx_b.size(0),
                             across,
                             mutable_data<index_t>(ptr),
                             mutable_data<index_t>(idx),
                             mutable_data<index_t>(entry)};
    work.point();
    parallel_rows(work.ptr, m_a * m_b, 2,
                  [&](int64_t first, int64_t last) { work.fill(first, last); });
  });
  return {ptr, idx, entry};
}

// ---- blocks ----------------------------------------------------------------------------------

// The blocks of `along` lines by `across` indices that hold an entry. Lines ascend.
template <class index_t>
struct Blocks {
  const index_t *ptr, *idx;
  int64_t along, across, line_step, element_step;
  index_t *columns, *where;  // (nse,): of the blocks of a block line, from its first entry on;
                             // place of each entry among the elements of these blocks

  // Finds the blocks of block line I in ascending order; `at` and `next` are `along` long. Returns
  // their number.
  int64_t find(int64_t I, index_t* at, index_t* next) const {
    switch (along) {  // short loops of a known length need no branch
      case 2:
        return find<2>(I, at, next);
      case 4:
        return find<4>(I, at, next);
      default:
        return find<0>(I, at, next);
    }
  }

 private:
  template <int64_t kAlong>
  SPGRAD_INLINE int64_t find(int64_t I, index_t* at, index_t* next) const {
    const int64_t along = kAlong == 0 ? this->along : kAlong;
    constexpr index_t kNone = std::numeric_limits<index_t>::max();
    // a division takes as long as all the rest of an entry
    const int shift = std::has_single_bit(static_cast<uint64_t>(across))
                          ? std::countr_zero(static_cast<uint64_t>(across))
                          : -1;
    const index_t* start = ptr + I * along;
    index_t* column = columns + start[0];
    for (int64_t c = 0; c < along; ++c) {
      at[c] = start[c];
      next[c] = start[c] < start[c + 1] ? idx[start[c]] : kNone;
    }
    for (int64_t block = 0;; ++block) {
      index_t least = kNone;
      for (int64_t c = 0; c < along; ++c) least = std::min(least, next[c]);
      if (least == kNone) return block;
      column[block] = shift < 0 ? least / static_cast<index_t>(across) : least >> shift;
      const int64_t first = int64_t{column[block]} * across, stop = first + across;
      const int64_t base = block * along * across;
      for (int64_t c = 0; c < along; ++c) {
        while (next[c] < stop) {
          where[at[c]] =
              static_cast<index_t>(base + c * line_step + (next[c] - first) * element_step);
          ++at[c];
          next[c] = at[c] < start[c + 1] ? idx[at[c]] : kNone;
        }
      }
    }
  }
};

// Calls f(first, last) on ranges of block lines, in parallel.
template <class F>
void parallel_blocks(int64_t lines, int64_t nse, const F& f) {
  const int64_t each = nse / std::max<int64_t>(lines, 1) + 1;
  parallel_entries(lines, 4 * each, f);
}

// ptr (m + 1,) with m a multiple of `along`, every line ascending. The pointers (m / along + 1,)
// and columns (b,) of the blocks, and for each of their b * along * across elements the entry that
// it is, -1 for none, or its value in val (nse,), zero for none. Elements lie line by line in a
// block, or column by column if `transposed`. O(m + nse + result) time; two arrays of the entries'
// number are allocated beside it.
std::tuple<Tensor, Tensor, Tensor> group_blocks_op(const Tensor& ptr, const Tensor& idx,
                                                   int64_t along, int64_t across, bool transposed,
                                                   const std::optional<Tensor>& val) {
  check_view(ptr, idx, std::nullopt);
  check_payload(val, idx.size(0));
  STD_TORCH_CHECK(along > 0 && across > 0 && (ptr.size(0) - 1) % along == 0, "spgrad: blocks of ",
                  along, " x ", across, " do not divide the lines.");
  const int64_t lines = (ptr.size(0) - 1) / along, size = along * across, nse = idx.size(0);
  Tensor out_ptr = empty(ptr, {lines + 1}), out_idx, moved;
  Tensor columns = empty(ptr, {nse}), where = empty(ptr, {nse});
  check_fits(ptr.scalar_type(), nse * size);  // what the places may come to
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    const index_t* const entries = data<index_t>(ptr);
    const Blocks<index_t> blocks{entries,
                                 data<index_t>(idx),
                                 along,
                                 across,
                                 transposed ? 1 : across,
                                 transposed ? along : 1,
                                 mutable_data<index_t>(columns),
                                 mutable_data<index_t>(where)};
    index_t* starts = mutable_data<index_t>(out_ptr);
    starts[0] = 0;
    parallel_blocks(lines, nse, [&](int64_t first, int64_t last) {
      List<index_t> at(along), next(along);
      for (int64_t I = first; I < last; ++I) {
        starts[I + 1] = static_cast<index_t>(blocks.find(I, at.data(), next.data()));
      }
    });
    for (int64_t I = 0; I < lines; ++I) starts[I + 1] += starts[I];
    out_idx = empty(ptr, {starts[lines]});
    moved = empty_payload(val, ptr, starts[lines] * size);
    index_t* const found = mutable_data<index_t>(out_idx);
    dispatch_payload<index_t>(val, moved, [&](auto payload) {
      parallel_blocks(lines, nse, [&](int64_t first, int64_t last) {
        std::fill(payload.out + starts[first] * size, payload.out + starts[last] * size,
                  payload.kNone);
        for (int64_t I = first; I < last; ++I) {
          const int64_t begin = entries[I * along], end = entries[(I + 1) * along];
          std::copy_n(blocks.columns + begin, starts[I + 1] - starts[I], found + starts[I]);
          const int64_t line = starts[I] * size;
          for (int64_t p = begin; p < end; ++p) payload.place(line + blocks.where[p], p);
        }
      });
    });
  });
  return {out_ptr, out_idx, moved};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("join_ranges", SPGRAD_BOX(&join_ranges_op));
  m.impl("take_ranges", SPGRAD_BOX(&take_ranges_op));
  m.impl("cut_lines", SPGRAD_BOX(&cut_lines_op));
  m.impl("kron_lines", SPGRAD_BOX(&kron_lines_op));
  m.impl("group_blocks", SPGRAD_BOX(&group_blocks_op));
}

}  // namespace spgrad
