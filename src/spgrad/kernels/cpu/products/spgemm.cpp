// A product of sparse matrices whose pattern is not known yet.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/order.h"
#include "common/sort.h"
#include "common/targets.h"
#include "products/gustavson/few_products.h"
#include "products/gustavson/rows.h"

namespace spgrad {
namespace {

// How the columns of a row are listed. While the sums are formed, each column is marked with a
// byte.
//   kSort: a column is listed when it is first marked, and the list is sorted; for few products.
//   kMarks: the marks are read afterwards, 64 at a time, which gives the columns in order.
//   kBlocks: each block of 64 columns has a mark as well, so one read covers 64 blocks; for columns
//     that lie far apart.
enum class Listing { kSort, kMarks, kBlocks };

constexpr int64_t kBlock = 64;

// Sorts distinct columns.
template <int kBytes, class index_t>
SPGRAD_INLINE void sort_columns(index_t* list, int64_t count) {
  if constexpr (sizeof(index_t) == sizeof(int32_t)) {
    if (count <= kCounted) return sort_by_counting<kBytes>(list, count, list);
  }
  std::sort(list, list + count);
}

// Returns a bit for each of 64 marks, which are bytes of ones or of zeros. Clears the marks.
template <int kBytes>
SPGRAD_INLINE uint64_t take_marks(int8_t* marks) {
  uint64_t bits = 0;
#if SPGRAD_WIDE
  if constexpr (kBytes == 64) {
    Vector<int8_t, 64> all;
    std::memcpy(&all, marks, sizeof all);
    asm("vpmovb2m %1, %0" : "=Yk"(bits) : "v"(all));
    std::memset(marks, 0, sizeof all);
    return bits;
  }
#endif
#ifdef __SSE2__
  for (int i = 0; i < 4; ++i) {
    auto* const sixteen = reinterpret_cast<__m128i*>(marks) + i;
    bits |= static_cast<uint64_t>(_mm_movemask_epi8(_mm_loadu_si128(sixteen))) << (16 * i);
    _mm_storeu_si128(sixteen, _mm_setzero_si128());
  }
#else
  for (int i = 0; i < 8; ++i) {
    uint64_t eight;
    std::memcpy(&eight, marks + 8 * i, sizeof eight);
    // The product moves the last bit of each byte into the top byte.
    bits |= ((eight & 0x0101010101010101u) * 0x0102040810204080u >> 56) << (8 * i);
  }
  std::memset(marks, 0, 64);
#endif
  return bits;
}

// Writes start + place of every bit to `out`, in ascending order, and returns the end. Writes up to
// kWrites numbers beyond the end: most calls have few bits, and a branch on their number would be
// mispredicted.
constexpr int64_t kWrites = 4;

template <class index_t>
SPGRAD_INLINE index_t* write_places(uint64_t bits, int64_t start, index_t* out) {
  index_t* const end = out + std::popcount(bits);
  do {
    for (int64_t i = 0; i < kWrites; ++i, bits &= bits - 1) {
      out[i] = static_cast<index_t>(start + std::countr_zero(bits | uint64_t{1} << 63));
      one_by_one();
    }
    out += kWrites;
  } while (bits != 0);
  return end;
}

// The memory of one thread in which the rows of a product are added up; zero between rows.
template <class sum_t>
struct Accumulator {
  sum_t* sum;      // (n,)
  int8_t* marks;   // (marks_of(n),)
  int8_t* blocks;  // (marks_of(n / kBlock + 1),)

  // The number of bytes for the marks of n places: whole blocks, because marks are read in blocks.
  static int64_t marks_of(int64_t n) { return (n / kBlock + 1) * kBlock; }
};

// The entries of consecutive rows. Their number is not known in advance.
template <class T>
class Growing {
 public:
  // Returns room for `count` more elements, or null if there is no memory, because this function
  // must not throw. It estimates the length of the whole list: with these elements, `done` of `all`
  // entries of A are done.
  T* reserve(int64_t count, int64_t done, int64_t all) {
    if (size_ + count > capacity_) {
      const double share = static_cast<double>(done) / static_cast<double>(all);
      const double estimate = 1.1 * static_cast<double>(size_ + count) / share;
      const double least = 1.25 * static_cast<double>(capacity_), most = 4 * (least + 4096);
      const int64_t grown =
          std::max(size_ + count, static_cast<int64_t>(std::clamp(estimate, least, most)));
      Memory larger(grown * sizeof(T));
      if (larger.start() == nullptr) {
        note_out_of_memory(grown * sizeof(T));
        return nullptr;
      }
      if (size_ > 0) std::memcpy(larger.start(), memory_.start(), size_ * sizeof(T));
      memory_ = std::move(larger);
      capacity_ = grown;
    }
    return static_cast<T*>(memory_.start()) + size_;
  }
  void commit(int64_t count) { size_ += count; }
  const T* begin() const { return static_cast<const T*>(memory_.start()); }
  int64_t size() const { return size_; }

  // The list as a tensor, without a copy if it fills at least four fifths of its memory.
  Tensor become(const Tensor& like, ScalarType dtype) && {
    if (size_ >= capacity_ - capacity_ / 5 && size_ > 0) {
      return std::move(memory_).become(like, {size_}, dtype);
    }
    Tensor made = spgrad::empty(like, {size_}, dtype);
    std::copy_n(begin(), size_, mutable_data<T>(made));
    return made;
  }

 private:
  Memory memory_;
  int64_t size_ = 0, capacity_ = 0;
};

// A part of the product: the columns and values of consecutive rows.
template <class index_t, class scalar_t>
struct Part {
  Growing<index_t> columns;
  Growing<scalar_t> values;
};

// Adds up row i of A @ B, marks its columns, and for kSort lists them. Returns the end of the list.
template <Listing kListing, class index_t, class scalar_t, class sum_t>
SPGRAD_INLINE index_t* add_row(const Matrix<index_t, scalar_t>& a,
                               const Matrix<index_t, scalar_t>& b, int64_t i,
                               const Accumulator<sum_t>& to, index_t* list) {
  const index_t* const __restrict columns = b.idx;
  const sum_t* const __restrict values = b.val;
  sum_t* const __restrict sum = to.sum;
  int8_t* const __restrict marks = to.marks;
  int8_t* const __restrict blocks = to.blocks;
  for (int64_t p = a.ptr[i]; p < a.ptr[i + 1]; ++p) {
    const int64_t begin = b.ptr[a.idx[p]], end = b.ptr[a.idx[p] + 1];
    const auto factor = a.val[p];
    for (int64_t q = begin; q < end; ++q) {
      const uint64_t j = columns[q];
      sum[j] += factor * values[q];
      if constexpr (kListing == Listing::kSort) {
        *list = static_cast<index_t>(j);
        list += 1 + marks[j];
      }
      marks[j] = -1;
      if constexpr (kListing == Listing::kBlocks) blocks[j / kBlock] = -1;
    }
  }
  return list;
}

// Lists the marked columns of a row, which lie in [low, high], in ascending order. Returns their
// end.
template <int kBytes, Listing kListing, class index_t, class sum_t>
SPGRAD_INLINE index_t* list_row(const Accumulator<sum_t>& from, int64_t low, int64_t high,
                                index_t* out) {
  const int64_t first = low / kBlock, last = high / kBlock;
  if constexpr (kListing == Listing::kMarks) {
    for (int64_t block = first; block <= last; ++block) {
      out = write_places(take_marks<kBytes>(from.marks + block * kBlock), block * kBlock, out);
    }
  } else {
    for (int64_t outer = first / kBlock; outer <= last / kBlock; ++outer) {
      for (uint64_t bits = take_marks<kBytes>(from.blocks + outer * kBlock); bits != 0;
           bits &= bits - 1) {
        const int64_t start = (outer * kBlock + std::countr_zero(bits)) * kBlock;
        out = write_places(take_marks<kBytes>(from.marks + start), start, out);
      }
    }
  }
  return out;
}

// What is known of a row before it is computed. Its columns lie in [low, high].
struct Extent {
  int64_t products, low, high;

  // The fastest way to list the columns. Reading a block of marks takes about as long as forming
  // a product.
  Listing listing() const {
    const int64_t reads = (high - low) / kBlock + 1;
    if (products <= kCounted) return Listing::kSort;
    if (reads <= products) return Listing::kMarks;
    return reads / kBlock <= products ? Listing::kBlocks : Listing::kSort;
  }
};

// `ascending`: the columns of B's rows ascend.
template <class index_t, class scalar_t>
SPGRAD_INLINE Extent extent_of(const Matrix<index_t, scalar_t>& a,
                               const Matrix<index_t, scalar_t>& b, int64_t i, int64_t n,
                               bool ascending) {
  int64_t products = 0;
  index_t low = std::numeric_limits<index_t>::max(), high = 0;
  for (int64_t p = a.ptr[i]; p < a.ptr[i + 1]; ++p) {
    b.prefetch(a, p, b.val);
    const int64_t begin = b.ptr[a.idx[p]], end = b.ptr[a.idx[p] + 1];
    products += end - begin;
    if (begin < end) {
      low = std::min(low, b.idx[begin]);
      high = std::max(high, b.idx[end - 1]);
    }
  }
  return ascending ? Extent{.products = products, .low = low, .high = high}
                   : Extent{.products = products, .low = 0, .high = n - 1};
}

// Forms row i of A @ B in `columns` and `values`, and returns how many entries it has.
template <int kBytes, Listing kListing, class index_t, class scalar_t, class sum_t>
SPGRAD_INLINE int64_t form_row(const Matrix<index_t, scalar_t>& a,
                               const Matrix<index_t, scalar_t>& b, int64_t i, const Extent& extent,
                               const Accumulator<sum_t>& to, index_t* columns, scalar_t* values) {
  index_t* end = add_row<kListing>(a, b, i, to, columns);
  if constexpr (kListing == Listing::kSort) {
    sort_columns<kBytes>(columns, end - columns);
  } else {
    end = list_row<kBytes, kListing>(to, extent.low, extent.high, columns);
  }
  const int64_t count = end - columns;
  sum_t* const sum = to.sum;
  int8_t* const marks = to.marks;
  for (int64_t q = 0; q < count; ++q) {
    const int64_t j = columns[q];
    values[q] = narrow<scalar_t>(sum[j]);
    sum[j] = {};
    if constexpr (kListing == Listing::kSort) marks[j] = 0;
  }
  return count;
}

// Forms the rows [first, last) of A @ B: the number of entries of row i in ptr[i + 1], its columns
// and values at the end of `part`. False if memory ran out.
template <int kBytes, class index_t, class scalar_t, class sum_t>
SPGRAD_INLINE bool form_rows(const Matrix<index_t, scalar_t>& a, const Matrix<index_t, scalar_t>& b,
                             int64_t n, bool ascending, int64_t first, int64_t last,
                             const Accumulator<sum_t>& to, index_t* ptr,
                             Part<index_t, scalar_t>& part) {
  const int64_t all = int64_t{a.ptr[last]} - a.ptr[first];
  FewProducts<index_t, scalar_t> few;
  for (int64_t i = first; i < last; ++i) {
    const Extent extent = extent_of(a, b, i, n, ascending);
    ptr[i + 1] = 0;
    if (extent.products == 0) continue;
    const int64_t done = int64_t{a.ptr[i + 1]} - a.ptr[first];
    const int64_t most = std::min(extent.products, n) + kSlack;
    index_t* const columns = part.columns.reserve(most, done, all);
    scalar_t* const values = part.values.reserve(most, done, all);
    if (!columns || !values) return false;
    const auto form = [&]<Listing kListing>() {
      return form_row<kBytes, kListing>(a, b, i, extent, to, columns, values);
    };
    const Listing listing = extent.listing();
    const int64_t count = few.takes(extent.products, extent.low, extent.high)
                              ? few.template form_row<kBytes>(a, b, i, extent.low, columns, values)
                          : listing == Listing::kSort ? form.template operator()<Listing::kSort>()
                          : listing == Listing::kMarks
                              ? form.template operator()<Listing::kMarks>()
                              : form.template operator()<Listing::kBlocks>();
    ptr[i + 1] = static_cast<index_t>(count);
    part.columns.commit(count);
    part.values.commit(count);
  }
  return true;
}

// A (m, k) @ B (k, n): row pointers (m + 1,), columns, and values. The columns of a row are
// ascending and distinct; in A and B columns may repeat and have any order. A sum runs over the row
// of A, then over the rows of B, in storage order, for any number of threads. O(products + nse of
// the result) time. Memory for the result, twice with several threads, whose parts are then copied
// one after another; n sums and n bytes a thread; and widened or permuted values.
template <class index_t, class scalar_t>
std::tuple<Tensor, Tensor> spgemm(const Matrix<index_t, scalar_t>& a,
                                  const Matrix<index_t, scalar_t>& b, int64_t n, const Tensor& ptr,
                                  const Tensor& val) {
  using sum_t = accumulate_t<scalar_t>;
  const RowSplit<index_t> split(a, b);
  const int64_t marks = Accumulator<sum_t>::marks_of(n);
  const int64_t blocks = Accumulator<sum_t>::marks_of(n / kBlock + 1);
  const Array<int8_t> marked = zeros<int8_t>(split.count() * (marks + blocks));
  const Array<sum_t> sums = zeros<sum_t>(split.count() * n);
  const bool ascending = lines_ascend<false>(b.ptr, b.idx, b.count);
  List<Part<index_t, scalar_t>> parts(split.count());
  List<char> done(split.count());
  index_t* starts = mutable_data<index_t>(ptr);
  starts[0] = 0;
  split.for_each([&](int64_t chunk, int64_t first, int64_t last) {
    int8_t* const own = marked.get() + chunk * (marks + blocks);
    const Accumulator<sum_t> to{sums.get() + chunk * n, own, own + marks};
    with_vectors([&]<int kBytes>() {
      done[chunk] = form_rows<kBytes>(a, b, n, ascending, first, last, to, starts, parts[chunk]);
    });
  });
  List<int64_t> offset(split.count() + 1);
  for (int64_t chunk = 0; chunk < split.count(); ++chunk) {
    if (!done[chunk]) throw std::bad_alloc();  // the chunk has called note_out_of_memory
    offset[chunk + 1] = offset[chunk] + parts[chunk].columns.size();
  }
  STD_TORCH_CHECK(offset.back() <= std::numeric_limits<index_t>::max(), "spgrad: the product has ",
                  offset.back(), " entries, which int32 indices cannot count; use int64 indices.");
  for (int64_t i = 0; i < a.count; ++i) starts[i + 1] += starts[i];
  if (split.count() == 1) {
    return {std::move(parts[0].columns).become(ptr, ptr.scalar_type()),
            std::move(parts[0].values).become(val, val.scalar_type())};
  }
  Tensor idx = empty(ptr, {offset.back()}), out = empty(val, {offset.back()});
  auto* const columns = mutable_data<index_t>(idx);
  auto* const values = mutable_data<scalar_t>(out);
  split.for_each([&](int64_t chunk, int64_t, int64_t) {
    std::copy_n(parts[chunk].columns.begin(), parts[chunk].columns.size(), columns + offset[chunk]);
    std::copy_n(parts[chunk].values.begin(), parts[chunk].values.size(), values + offset[chunk]);
  });
  return {idx, out};
}

std::tuple<Tensor, Tensor, Tensor> spgemm_op(const Tensor& ptr_a, const Tensor& idx_a,
                                             const std::optional<Tensor>& perm_a,
                                             const Tensor& val_a, const Tensor& ptr_b,
                                             const Tensor& idx_b,
                                             const std::optional<Tensor>& perm_b,
                                             const Tensor& val_b, int64_t n, bool /* checked */) {
  const ScalarType index = ptr_a.scalar_type(), value = val_a.scalar_type();
  check_view(ptr_a, idx_a, perm_a);
  check_view(ptr_b, idx_b, perm_b);
  check_tensor(ptr_b, 1, index, "ptr_b");
  check_values(val_a, idx_a, value, "val_a");
  check_values(val_b, idx_b, value, "val_b");
  Tensor ptr = empty(ptr_a, {ptr_a.size(0)}), idx, val;
  dispatch(index, value, [&]<class index_t, class scalar_t>() {
    const Matrix<index_t, scalar_t> a(ptr_a, idx_a, perm_a, val_a), b(ptr_b, idx_b, perm_b, val_b);
    std::tie(idx, val) = spgemm(a, b, n, ptr, val_a);
  });
  return {ptr, idx, val};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) { m.impl("spgemm", SPGRAD_BOX(&spgemm_op)); }

}  // namespace spgrad
