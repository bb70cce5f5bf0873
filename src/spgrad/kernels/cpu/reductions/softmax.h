// The softmax over the entries of every segment, and its gradient.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "reductions/exponential.h"
#include "reductions/segments.h"

namespace spgrad {

// The larger of two numbers. It may ignore a NaN; the sum of the exponentials is then NaN.
struct Larger {
  template <class V>
  SPGRAD_INLINE V operator()(const V& a, const V& b) const {
    return a > b ? a : b;
  }
};

// The softmax of one segment in one column, whose elements are contiguous: x (count,). With `room`,
// the last vector may be read and written as a whole, beyond the end. F is float or double.
template <int kBytes, class F>
struct Softmax {
  static constexpr int kLanes = kBytes / sizeof(F);
  using V = Vector<F, kLanes>;

  static SPGRAD_INLINE bool whole(int64_t count, int64_t at, bool room) {
    return room || count - at >= kLanes;
  }

  static SPGRAD_INLINE F largest(const F* x, int64_t count, bool room) {
    constexpr F kNone = -std::numeric_limits<F>::infinity();
    V max = all<V>(kNone);
    for (int64_t p = 0; p < count; p += kLanes) {
      max = Larger()(load_part<kLanes>(x + p, count - p, kNone, whole(count, p, room)), max);
    }
    return fold_lanes<kLanes>(max, Larger())[0];
  }

  // The sum of e^(x - max); the terms stay in `out`.
  static SPGRAD_INLINE F total(const F* x, int64_t count, F max, bool room, F* out) {
    constexpr F kNone = -std::numeric_limits<F>::infinity();
    V sum{};
    for (int64_t p = 0; p < count; p += kLanes) {
      const bool vector = whole(count, p, room);
      const V term = exp_lanes<F>(load_part<kLanes>(x + p, count - p, kNone, vector) - max);
      store_part<kLanes, F>(term, count - p, out + p, vector);
      sum += term;
    }
    return fold_lanes<kLanes>(sum, Add())[0];
  }

  // Writes the result. Without `log`, `out` holds the terms of the sum.
  static SPGRAD_INLINE void finish(const F* x, int64_t count, F max, F sum, bool log, F* out) {
    if (log) {
      const F log_sum = std::log(sum);
      for (int64_t p = 0; p < count; ++p) out[p] = (x[p] - max) - log_sum;
    } else {
      const F scale = 1 / sum;
      for (int64_t p = 0; p < count; ++p) out[p] *= scale;
    }
  }

  static SPGRAD_INLINE void forward(const F* x, int64_t count, bool log, bool room, F* out) {
    if (count > kLanes) {
      const F max = largest(x, count, room);
      return finish(x, count, max, total(x, count, max, room, out), log, out);
    }
    const V all_x = load_part<kLanes>(x, count, -std::numeric_limits<F>::infinity(), room);
    const V shifted = all_x - fold_lanes<kLanes>(all_x, Larger());
    const V term = exp_lanes<F>(shifted);
    const F sum = fold_lanes<kLanes>(term, Add())[0];
    const V result = log ? shifted - std::log(sum) : term * (1 / sum);
    store_part<kLanes, F>(result, count, out, room);
  }

  // The sum that the gradients of all elements of the segment contain.
  static SPGRAD_INLINE F dot(const F* y, const F* g, int64_t count, bool log, bool room) {
    V sum{};
    for (int64_t p = 0; p < count; p += kLanes) {
      const bool vector = whole(count, p, room);
      const V of_g = load_part<kLanes>(g + p, count - p, F{0}, vector);
      sum += log ? of_g : of_g * load_part<kLanes>(y + p, count - p, F{0}, vector);
    }
    return fold_lanes<kLanes>(sum, Add())[0];
  }

  static SPGRAD_INLINE V gradient(const V& y, const V& g, F sum, bool log) {
    return log ? g - exp_lanes<F>(y) * sum : y * (g - sum);
  }

  static SPGRAD_INLINE void finish_backward(const F* y, const F* g, int64_t count, F sum, bool log,
                                            bool room, F* out) {
    for (int64_t p = 0; p < count; p += kLanes) {
      const bool vector = whole(count, p, room);
      const V of_y = load_part<kLanes>(y + p, count - p, F{0}, vector);
      const V of_g = load_part<kLanes>(g + p, count - p, F{0}, vector);
      store_part<kLanes, F>(gradient(of_y, of_g, sum, log), count - p, out + p, vector);
    }
  }

  static SPGRAD_INLINE void backward(const F* y, const F* g, int64_t count, bool log, bool room,
                                     F* out) {
    if (count > kLanes) {
      return finish_backward(y, g, count, dot(y, g, count, log, room), log, room, out);
    }
    const V of_y = load_part<kLanes>(y, count, F{0}, room);
    const V of_g = load_part<kLanes>(g, count, F{0}, room);
    const F sum = fold_lanes<kLanes>(log ? of_g : of_g * of_y, Add())[0];
    store_part<kLanes, F>(gradient(of_y, of_g, sum, log), count, out, room);
  }
};

// Segments [first, last) of d >= kElements columns, a vector of columns at a time.
template <int kElements, class index_t, class T>
SPGRAD_INLINE void softmax_columns(const Segments<index_t> segments, const T* val, bool log,
                                   int64_t first, int64_t last, T* out) {
  using F = accumulate_t<T>;
  using V = Lanes<T, kElements>;
  for (int64_t i = first; i < last; ++i) {
    for_columns<kElements>(segments.d, [&](int64_t column) {
      const auto element = [&](int64_t p) {
        V lanes;
        load<kElements>(val + segments.place(p) + column, lanes);
        return lanes;
      };
      const int64_t begin = segments.ptr[i], end = segments.ptr[i + 1];
      V max = all<V>(-std::numeric_limits<F>::infinity()), sum{};
      for (int64_t p = begin; p < end; ++p) max = Larger()(element(p), max);
      const bool kept = !log && std::is_same_v<T, F>;  // `out` stores the terms without rounding
      join_entries(begin, end, sum, Add(), [&](int64_t p) {
        const V term = exp_lanes<F>(element(p) - max);
        if (kept) store<kElements>(term, out + segments.place(p) + column);
        return term;
      });
      if (log) {
        for (int l = 0; l < kElements; ++l) sum[l] = std::log(sum[l]);
      } else {
        sum = 1 / sum;
      }
      for (int64_t p = begin; p < end; ++p) {
        T* const to = out + segments.place(p) + column;
        V result;
        if (kept) {
          load<kElements>(to, result);
          result *= sum;
        } else {
          const V shifted = element(p) - max;
          result = log ? shifted - sum : exp_lanes<F>(shifted) * sum;
        }
        store<kElements>(result, to);
      }
    });
  }
}

// The gradient of the same segments.
template <int kElements, class index_t, class T>
SPGRAD_INLINE void softmax_backward_columns(const Segments<index_t> segments, const T* y,
                                            const T* g, bool log, int64_t first, int64_t last,
                                            T* out) {
  using F = accumulate_t<T>;
  using V = Lanes<T, kElements>;
  for (int64_t i = first; i < last; ++i) {
    for_columns<kElements>(segments.d, [&](int64_t column) {
      const auto element = [&](const T* from, int64_t p) {
        V lanes;
        load<kElements>(from + segments.place(p) + column, lanes);
        return lanes;
      };
      const int64_t begin = segments.ptr[i], end = segments.ptr[i + 1];
      V sum{};
      join_entries(begin, end, sum, Add(),
                   [&](int64_t p) { return log ? element(g, p) : element(g, p) * element(y, p); });
      for (int64_t p = begin; p < end; ++p) {
        const V of_y = element(y, p), of_g = element(g, p);
        const V result = log ? of_g - exp_lanes<F>(of_y) * sum : of_y * (of_g - sum);
        store<kElements>(result, out + segments.place(p) + column);
      }
    });
  }
}

}  // namespace spgrad
