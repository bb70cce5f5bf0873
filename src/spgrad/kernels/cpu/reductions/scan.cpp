// The running sums of the elements of each segment.
#include <algorithm>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "reductions/segments.h"

namespace spgrad {
namespace {

// val and out (nse, d). Every sum adds the values in the order of the segment, from its first entry
// or, if `backward`, from its last. Segments of more than kBlock entries are summed in blocks of a
// fixed size, so results do not depend on the number of threads. O(nse d) time; memory for d sums
// for each block of a long segment.
template <class index_t, class T>
struct Scan {
  using C = long_sum_t<T>;
  static constexpr int64_t kColumns = 32;

  Segments<index_t> segments;
  const T* val;
  T* out;
  bool backward;

  // Calls f(p) for every entry in the order of the sums.
  template <class F>
  SPGRAD_INLINE void each(int64_t begin, int64_t end, const F& f) const {
    if (backward) {
      for (int64_t p = end; p-- > begin;) f(p);
    } else {
      for (int64_t p = begin; p < end; ++p) f(p);
    }
  }

  // Adds the entries [begin, end), of one segment, to the sums of the columns [first, last), and
  // writes the sums behind each entry, if kWrites.
  template <bool kWrites>
  SPGRAD_INLINE void add(int64_t begin, int64_t end, int64_t first, int64_t last, C* sums) const {
    each(begin, end, [&](int64_t p) {
      const int64_t place = segments.place(p);
      for (int64_t j = first; j < last; ++j) {
        sums[j - first] += converted<C>(widen(val[place + j]));
        if constexpr (kWrites)
          out[place + j] = narrow<T>(converted<accumulate_t<T>>(sums[j - first]));
      }
    });
  }

  // Segments [first, last).
  SPGRAD_INLINE void few(int64_t first, int64_t last) const {
    const int64_t d = segments.d;
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = segments.ptr[i], end = segments.ptr[i + 1];
      if (d == 1) {  // the sum stays in a register
        C sum{};
        add<true>(begin, end, 0, 1, &sum);
        continue;
      }
      for (int64_t j = 0; j < d; j += kColumns) {
        C sums[kColumns]{};
        add<true>(begin, end, j, std::min(j + kColumns, d), sums);
      }
    }
  }

  // Segment i, in blocks: first the sum of each, then the sum of those before each, then all.
  void one(int64_t i) const {
    const int64_t d = segments.d;
    const auto sums = zeros<C>((segments.length(i) / segments.at_once() + 1) * d);
    const int64_t count = for_blocks(segments, i, [&](int64_t block, int64_t begin, int64_t end) {
      add<false>(begin, end, 0, d, sums.get() + block * d);
    });
    for (int64_t j = 0; j < d; ++j) {
      C before{};
      each(0, count, [&](int64_t block) {
        const C sum = sums[block * d + j];
        sums[block * d + j] = before;
        before += sum;
      });
    }
    for_blocks(segments, i, [&](int64_t block, int64_t begin, int64_t end) {
      add<true>(begin, end, 0, d, sums.get() + block * d);
    });
  }
};

Tensor segment_scan(const Tensor& ptr, const std::optional<Tensor>& perm, const Tensor& val,
                    bool backward) {
  check_columns(val, "val");
  Tensor out = empty_columns(val, val.size(0));
  dispatch(ptr.scalar_type(), val.scalar_type(), [&]<class index_t, class T>() {
    const auto segments = checked_segments<index_t>(ptr, perm, val, "val");
    const Scan<index_t, T> scan{.segments = segments,
                                .val = data<T>(val),
                                .out = mutable_data<T>(out),
                                .backward = backward};
    for_segments(
        segments, 1, [&](int64_t first, int64_t last) { scan.few(first, last); },
        [&](int64_t i) { scan.one(i); });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) { m.impl("segment_scan", SPGRAD_BOX(&segment_scan)); }

}  // namespace spgrad
