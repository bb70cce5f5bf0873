// The pattern of a product of sparse matrices.
#include <bit>
#include <limits>
#include <tuple>
#include <utility>

#include "spgemm.h"

namespace spgrad {
namespace {

// A set of columns in [0, n) that lists itself in ascending order: a bit for each column, and a
// summary with a bit for each word of those. Listing costs a look at one summary word for every
// kColumnsPerLook columns between the least and the greatest, and a step for every column.
constexpr int64_t kColumnsPerLook = 64 * 64;

class ColumnSet {
 public:
  static int64_t words(int64_t n) { return n / 64 + 1; }
  static int64_t memory(int64_t n) { return words(n) + words(words(n)); }

  // `zeroed` has memory(n) words.
  ColumnSet(uint64_t* zeroed, int64_t n) : bits_(zeroed), summary_(zeroed + words(n)) {}

  // Columns that follow one another in a word are gathered in a register first: the memory would
  // have to pass each on to the next.
  template <class index_t>
  void insert(const index_t* columns, int64_t count) {
    if (count == 0) return;
    int64_t word = columns[0] >> 6;
    uint64_t bits = 0;
    for (int64_t q = 0; q < count; ++q) {
      if (columns[q] >> 6 != word) {
        add(word, bits);
        word = columns[q] >> 6;
        bits = 0;
      }
      bits |= uint64_t{1} << (columns[q] & 63);
    }
    add(word, bits);
  }

  // Writes the columns and empties the set. Returns the end of what was written.
  template <class index_t>
  index_t* drain(index_t* out) {
    for (int64_t s = low_ >> 6; s <= high_ >> 6; ++s) {
      for (uint64_t words = std::exchange(summary_[s], 0); words != 0; words &= words - 1) {
        const int64_t word = s * 64 + std::countr_zero(words);
        for (uint64_t bits = std::exchange(bits_[word], 0); bits != 0; bits &= bits - 1) {
          *out++ = static_cast<index_t>(word * 64 + std::countr_zero(bits));
        }
      }
    }
    low_ = INT64_MAX;
    high_ = -1;
    return out;
  }

 private:
  SPGRAD_INLINE void add(int64_t word, uint64_t bits) {
    bits_[word] |= bits;
    summary_[word >> 6] |= uint64_t{1} << (word & 63);
    low_ = std::min(low_, word);
    high_ = std::max(high_, word);
  }

  uint64_t *bits_, *summary_;
  int64_t low_ = INT64_MAX, high_ = -1;
};

// Columns of consecutive rows, of a number not known before.
template <class column_t>
class Columns {
 public:
  // Room for `count` more columns, null if there is none to be had: nothing may throw here.
  column_t* reserve(int64_t count) {
    if (size_ + count > capacity_) {
      capacity_ = std::max(size_ + count, capacity_ * 2);
      void* grown = std::realloc(data_.get(), capacity_ * sizeof(column_t));
      if (!grown) return nullptr;
      static_cast<void>(data_.release());
      data_.reset(static_cast<column_t*>(grown));
    }
    return data_.get() + size_;
  }
  void commit(const column_t* end) { size_ = end - data_.get(); }
  const column_t* begin() const { return data_.get(); }
  int64_t size() const { return size_; }

 private:
  std::unique_ptr<column_t, Free> data_;
  int64_t size_ = 0, capacity_ = 0;
};

template <class column_t>
column_t* sort_unique(column_t* begin, column_t* end) {
  std::sort(begin, end);
  return std::unique(begin, end);
}

// Lists the rows [first, last) of A @ B: the number of columns of row i in ptr[i + 1], the columns
// at the end of `columns`. A short row in a wide range of columns is sorted, any other passes
// through a set in `zeroed`. False if memory ran out.
template <class index_t, class column_t>
bool list_rows(const Rows<index_t>& a, const Rows<index_t>& b, int64_t n, int64_t first,
               int64_t last, uint64_t* zeroed, index_t* ptr, Columns<column_t>& columns) {
  ColumnSet set(zeroed, n);
  const int64_t sorted_below = n / kColumnsPerLook / 16;  // a column sorts in about 16 looks' time
  for (int64_t i = first; i < last; ++i) {
    int64_t products = 0;
    for (int64_t p = a.ptr[i]; p < a.ptr[i + 1]; ++p) {
      b.prefetch(a, p);
      products += b.length(a.idx[p]);
    }
    const bool sorts = products < sorted_below;
    column_t* const row = columns.reserve((sorts ? products : std::min(products, n)) + 1);
    if (!row) return false;
    column_t* end = row;
    for (int64_t p = a.ptr[i]; p < a.ptr[i + 1]; ++p) {
      const index_t* of_b = b.idx + b.ptr[a.idx[p]];
      if (sorts) {
        end = std::copy_n(of_b, b.length(a.idx[p]), end);
      } else {
        set.insert(of_b, b.length(a.idx[p]));
      }
    }
    end = sorts ? sort_unique(row, end) : set.drain(row);
    ptr[i + 1] = static_cast<index_t>(end - row);
    columns.commit(end);
  }
  return true;
}

// The structural product of A (m, k) and B (k, n): ptr (m + 1,) preallocated, the columns returned,
// ascending and distinct in each row, whatever the order and the repetitions in A and B. Each
// thread lists its rows, then the lists are put one after another: O(products + nse of the result)
// time, and memory for the result twice and n bits a thread. column_t holds any column below n.
template <class index_t, class column_t>
Tensor spgemm_pattern(const Rows<index_t>& a, const Rows<index_t>& b, int64_t n,
                      const Tensor& ptr) {
  const RowSplit<index_t> split(a, b);
  const int64_t memory = ColumnSet::memory(n);
  const ZeroedArray<uint64_t> sets(split.count() * memory);
  std::vector<Columns<column_t>> columns(split.count());
  std::vector<char> done(split.count());
  index_t* starts = mutable_data<index_t>(ptr);
  starts[0] = 0;
  split.for_each([&](int64_t c, int64_t first, int64_t last) {
    done[c] = list_rows(a, b, n, first, last, sets.get() + c * memory, starts, columns[c]);
  });
  std::vector<int64_t> offset(split.count() + 1);
  for (int64_t c = 0; c < split.count(); ++c) {
    STD_TORCH_CHECK(done[c], "spgrad: out of memory for the pattern of a sparse product.");
    offset[c + 1] = offset[c] + columns[c].size();
  }
  STD_TORCH_CHECK(offset.back() <= std::numeric_limits<index_t>::max(), "spgrad: the product has ",
                  offset.back(), " entries, which int32 indices cannot count; use int64 indices.");
  for (int64_t i = 0; i < a.count; ++i) starts[i + 1] += starts[i];
  Tensor idx = empty(ptr, {offset.back()});
  index_t* out = mutable_data<index_t>(idx);
  split.for_each([&](int64_t c, int64_t, int64_t) {
    std::copy_n(columns[c].begin(), columns[c].size(), out + offset[c]);
  });
  return idx;
}

std::tuple<Tensor, Tensor> spgemm_pattern_op(const Tensor& ptr_a, const Tensor& idx_a,
                                             const Tensor& ptr_b, const Tensor& idx_b, int64_t n) {
  check_view(ptr_a, idx_a, std::nullopt);
  check_view(ptr_b, idx_b, std::nullopt);
  check_tensor(ptr_b, 1, ptr_a.scalar_type(), "ptr_b");
  Tensor ptr = empty(ptr_a, {ptr_a.size(0)}), idx;
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    const Rows<index_t> a(ptr_a, idx_a), b(ptr_b, idx_b);
    // The lists are written and read once: in 32 bits they are through sooner.
    idx = n <= UINT32_MAX ? spgemm_pattern<index_t, uint32_t>(a, b, n, ptr)
                          : spgemm_pattern<index_t, int64_t>(a, b, n, ptr);
  });
  return {ptr, idx};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("spgemm_pattern", TORCH_BOX(&spgemm_pattern_op));
}

}  // namespace spgrad
