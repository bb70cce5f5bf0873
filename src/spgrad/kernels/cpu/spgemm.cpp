// Sparse times sparse: the pattern of the product, its values, and the product under a mask. All
// three go row by row (Gustavson 1978, "Two fast algorithms for sparse matrices").
#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <tuple>
#include <vector>

#include "dispatch.h"

namespace spgrad {
namespace {

struct Free {
  void operator()(void* pointer) const { std::free(pointer); }
};

// Memory that counts only where it is touched: calloc gives large blocks as untouched zero pages.
// Elements are zero; T is trivial.
template <class T>
class ZeroedArray {
 public:
  explicit ZeroedArray(int64_t size) : data_(static_cast<T*>(std::calloc(size + 1, sizeof(T)))) {
    if (!data_) throw std::bad_alloc();
  }
  T* get() const { return data_.get(); }

 private:
  std::unique_ptr<T, Free> data_;
};

template <class index_t>
struct Rows {
  const index_t *ptr, *idx;
  int64_t count;

  Rows(const Tensor& p, const Tensor& i)
      : ptr(data<index_t>(p)), idx(data<index_t>(i)), count(p.size(0) - 1) {}

  int64_t length(int64_t i) const { return int64_t{ptr[i + 1]} - ptr[i]; }

  // Fetches what the entries of `a` after p will read: the row of a column of `a` lies anywhere,
  // and each of its arrays would be waited for in turn.
  template <class... T>
  SPGRAD_INLINE void prefetch(const Rows& a, int64_t p, const T*... val) const {
    const int64_t last = a.ptr[a.count] - 1;
    __builtin_prefetch(ptr + a.idx[std::min(p + 2 * kAhead, last)]);
    const int64_t start = ptr[a.idx[std::min(p + kAhead, last)]];
    __builtin_prefetch(idx + start);
    (__builtin_prefetch(val + start), ...);
  }

 private:
  static constexpr int64_t kAhead = 8;
};

// Ranges of a's rows with equal shares of the products a row meets in b.
template <class index_t>
class RowSplit {
 public:
  RowSplit(const Rows<index_t>& a, const Rows<index_t>& b)
      : rows_(a.count), work_(starts(a, b)), chunks_(work_.back() + rows_) {}

  int64_t count() const { return chunks_.count(); }

  // Calls f(chunk, first_row, last_row), in parallel. f must not throw.
  template <class F>
  void for_each(const F& f) const {
    chunks_.for_each([&](int64_t c, int64_t begin, int64_t end) {
      const int64_t first = c == 0 ? 0 : row_at_work(work_.data(), rows_, begin);
      const int64_t last = c + 1 == count() ? rows_ : row_at_work(work_.data(), rows_, end);
      f(c, first, last);
    });
  }

 private:
  // The products before each row; all zero, for a single chunk, where one thread is all there is.
  static std::vector<int64_t> starts(const Rows<index_t>& a, const Rows<index_t>& b) {
    if (torch::stable::get_num_threads() == 1) return {0};
    std::vector<int64_t> work(a.count + 1);
    parallel_rows(a.ptr, a.count, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        int64_t products = a.length(i);
        for (int64_t p = a.ptr[i]; p < a.ptr[i + 1]; ++p) products += b.length(a.idx[p]);
        work[i + 1] = products;
      }
    });
    for (int64_t i = 0; i < a.count; ++i) work[i + 1] += work[i];
    return work;
  }

  int64_t rows_;
  std::vector<int64_t> work_;
  Chunks chunks_;
};

// ---- pattern ---------------------------------------------------------------------------------

// A set of columns in [0, n) that lists itself in ascending order: a bit for each column, and a
// summary with a bit for each word of those. Listing costs a look at one summary word for every
// 4096 columns between the least and the greatest, and one step for every column in the set.
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

// Lists the rows [first, last) of A @ B: the number of columns of row i in ptr[i + 1], the columns
// at the end of `columns`. A short row in a wide range of columns is sorted, any other passes
// through a set in `zeroed`. False if memory ran out.
template <class index_t, class column_t>
bool list_rows(const Rows<index_t>& a, const Rows<index_t>& b, int64_t n, int64_t first,
               int64_t last, uint64_t* zeroed, index_t* ptr, Columns<column_t>& columns) {
  ColumnSet set(zeroed, n);
  const int64_t sorted_below = n / kColumnsPerLook / 16;
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
    if (sorts) {
      std::sort(row, end);
      end = std::unique(row, end);
    } else {
      end = set.drain(row);
    }
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
Tensor spgemm_pattern(const Rows<index_t>& a, const Rows<index_t>& b, int64_t n, const Tensor& ptr) {
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
  STD_TORCH_CHECK(offset.back() <= std::numeric_limits<index_t>::max(),
                  "spgrad: the product has ", offset.back(),
                  " entries, which int32 indices cannot count; use int64 indices.");
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

// ---- values ----------------------------------------------------------------------------------

// A row view with its values widened to the type of the sums and in the order of the rows. They
// are copied where that asks for it: the inner loops pass over a row of B once for every entry of
// A in its column, and find it contiguous.
template <class index_t, class scalar_t>
struct Matrix : Rows<index_t> {
  using sum_t = accumulate_t<scalar_t>;

  std::unique_ptr<sum_t[]> copy;
  const sum_t* val;

  Matrix(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
         const Tensor& values)
      : Rows<index_t>(ptr, idx) {
    constexpr bool kSameBits = sizeof(scalar_t) == sizeof(sum_t);  // integers: modulo 2^bits
    val = static_cast<const sum_t*>(values.const_data_ptr());
    if (kSameBits && !perm) return;
    const int64_t nse = idx.size(0);
    copy = std::make_unique_for_overwrite<sum_t[]>(nse);
    val = copy.get();
    const scalar_t* from = data<scalar_t>(values);
    const index_t* order = data<index_t>(perm);
    Chunks(nse).for_each([&](int64_t, int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) copy[p] = widen(from[order ? order[p] : p]);
    });
  }
};

// Row i of A @ B at the columns of row i of c. `sum` (n,) holds what it may elsewhere: only the
// columns of c are cleared and read, so products outside c vanish.
template <class index_t, class scalar_t>
void value_row(const Rows<index_t>& c, const Matrix<index_t, scalar_t>& a,
               const Matrix<index_t, scalar_t>& b, int64_t i, accumulate_t<scalar_t>* sum,
               scalar_t* out) {
  for (int64_t q = c.ptr[i]; q < c.ptr[i + 1]; ++q) sum[c.idx[q]] = {};
  for (int64_t p = a.ptr[i]; p < a.ptr[i + 1]; ++p) {
    b.prefetch(a, p, b.val);
    const auto factor = a.val[p];
    for (int64_t q = b.ptr[a.idx[p]]; q < b.ptr[a.idx[p] + 1]; ++q) {
      sum[b.idx[q]] += factor * b.val[q];
    }
  }
  for (int64_t q = c.ptr[i]; q < c.ptr[i + 1]; ++q) out[q] = narrow<scalar_t>(sum[c.idx[q]]);
}

void check_values(const Tensor& val, const Tensor& idx, ScalarType dtype, const char* name) {
  check_tensor(val, 1, dtype, name);
  check_size(val, 0, idx.size(0), name);
}

// The values (nse of c,) of A (m, k) @ B (k, n) on a pattern c (m, n) whose columns are distinct in
// each row; A and B may repeat columns, in any order. A sum runs over A's row, then B's rows, as
// they are stored, whatever the number of threads. O(products + nse of c) time; n sums of memory a
// thread, and widened or permuted values.
Tensor spgemm_values_op(const Tensor& ptr_c, const Tensor& idx_c, const Tensor& ptr_a,
                        const Tensor& idx_a, const std::optional<Tensor>& perm_a,
                        const Tensor& val_a, const Tensor& ptr_b, const Tensor& idx_b,
                        const std::optional<Tensor>& perm_b, const Tensor& val_b, int64_t n) {
  const ScalarType index = ptr_c.scalar_type(), value = val_a.scalar_type();
  check_view(ptr_c, idx_c, std::nullopt);
  check_view(ptr_a, idx_a, perm_a);
  check_view(ptr_b, idx_b, perm_b);
  check_tensor(ptr_a, 1, index, "ptr_a");
  check_tensor(ptr_b, 1, index, "ptr_b");
  check_size(ptr_a, 0, ptr_c.size(0), "ptr_a");
  check_values(val_a, idx_a, value, "val_a");
  check_values(val_b, idx_b, value, "val_b");
  Tensor val_c = empty(val_a, {idx_c.size(0)});
  dispatch(index, value, [&]<class index_t, class scalar_t>() {
    using sum_t = accumulate_t<scalar_t>;
    const Rows<index_t> c(ptr_c, idx_c);
    const Matrix<index_t, scalar_t> a(ptr_a, idx_a, perm_a, val_a), b(ptr_b, idx_b, perm_b, val_b);
    const RowSplit<index_t> split(a, b);
    const ZeroedArray<sum_t> sums(split.count() * n);
    scalar_t* out = mutable_data<scalar_t>(val_c);
    split.for_each([&](int64_t chunk, int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) value_row(c, a, b, i, sums.get() + chunk * n, out);
    });
  });
  return val_c;
}

// ---- masked ----------------------------------------------------------------------------------

template <class T>
SPGRAD_INLINE bool is_nan(T value) {
  return value != value;
}
template <class T>
SPGRAD_INLINE bool is_nan(Complex<T> value) {
  return is_nan(value.re) || is_nan(value.im);
}

// Row i of C as a dense vector, dotted with rows of B. Entries that C lacks count as zeros, which
// is exact as long as B is finite. An infinity in B times such a zero makes a NaN: then the sum is
// formed again over the entries that C has.
template <class index_t, class scalar_t>
struct MaskedRow {
  using sum_t = accumulate_t<scalar_t>;

  const Matrix<index_t, scalar_t>&c, &b;
  sum_t* dense;   // (n,), zero between rows
  char* present;  // (n,), zero between rows; marked at the first NaN of a row
  int64_t i;
  bool marked = false;

  void scatter() {
    for (int64_t p = c.ptr[i]; p < c.ptr[i + 1]; ++p) dense[c.idx[p]] += c.val[p];
  }

  void clear() {
    for (int64_t p = c.ptr[i]; p < c.ptr[i + 1]; ++p) dense[c.idx[p]] = {};
    mark(false);
  }

  void mark(bool flag) {
    if (marked == flag) return;
    for (int64_t p = c.ptr[i]; p < c.ptr[i + 1]; ++p) present[c.idx[p]] = flag;
    marked = flag;
  }

  sum_t dot(int64_t j) {
    sum_t sum{};
    for (int64_t q = b.ptr[j]; q < b.ptr[j + 1]; ++q) sum += dense[b.idx[q]] * b.val[q];
    if (!is_nan(sum)) return sum;
    mark(true);
    sum = {};
    for (int64_t q = b.ptr[j]; q < b.ptr[j + 1]; ++q) {
      if (present[b.idx[q]]) sum += dense[b.idx[q]] * b.val[q];
    }
    return sum;
  }
};

// out (nse of the mask,): for entry p = (i, j) of the mask (m, k), out[perm[p]] is the product of
// row i of C (m, n) and row j of B (k, n) over the columns that both have. Repeated entries add in
// C and B and each get the whole sum in the mask; no order is asked for. O(products that the mask
// meets + nse of C) time; n sums and n bytes a thread, and widened or permuted values. Every sum is
// formed by one thread, in the order of B's row.
Tensor masked_spgemm_op(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
                        const Tensor& ptr_c, const Tensor& idx_c,
                        const std::optional<Tensor>& perm_c, const Tensor& val_c,
                        const Tensor& ptr_b, const Tensor& idx_b,
                        const std::optional<Tensor>& perm_b, const Tensor& val_b, int64_t n) {
  const ScalarType index = ptr.scalar_type(), value = val_c.scalar_type();
  check_view(ptr, idx, perm);
  check_view(ptr_c, idx_c, perm_c);
  check_view(ptr_b, idx_b, perm_b);
  check_tensor(ptr_c, 1, index, "ptr_c");
  check_tensor(ptr_b, 1, index, "ptr_b");
  check_size(ptr_c, 0, ptr.size(0), "ptr_c");
  check_values(val_c, idx_c, value, "val_c");
  check_values(val_b, idx_b, value, "val_b");
  Tensor out = empty(val_c, {idx.size(0)});
  dispatch(index, value, [&]<class index_t, class scalar_t>() {
    const Rows<index_t> mask(ptr, idx);
    const Matrix<index_t, scalar_t> c(ptr_c, idx_c, perm_c, val_c), b(ptr_b, idx_b, perm_b, val_b);
    const RowSplit<index_t> split(mask, b);
    const ZeroedArray<accumulate_t<scalar_t>> dense(split.count() * n);
    const ZeroedArray<char> present(split.count() * n);
    const index_t* order = data<index_t>(perm);
    scalar_t* values = mutable_data<scalar_t>(out);
    split.for_each([&](int64_t chunk, int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        if (mask.length(i) == 0) continue;
        MaskedRow<index_t, scalar_t> row{c, b, dense.get() + chunk * n, present.get() + chunk * n, i};
        row.scatter();
        for (int64_t p = mask.ptr[i]; p < mask.ptr[i + 1]; ++p) {
          b.prefetch(mask, p, b.val);
          values[order ? order[p] : p] = narrow<scalar_t>(row.dot(mask.idx[p]));
        }
        row.clear();
      }
    });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("spgemm_pattern", TORCH_BOX(&spgemm_pattern_op));
  m.impl("spgemm_values", TORCH_BOX(&spgemm_values_op));
  m.impl("masked_spgemm", TORCH_BOX(&masked_spgemm_op));
}

}  // namespace spgrad
