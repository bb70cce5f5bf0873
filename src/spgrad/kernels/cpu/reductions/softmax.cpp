// Host functions of the softmax over segments: see softmax.h.
#include "reductions/softmax.h"

#include <algorithm>

#include "common/arguments.h"
#include "common/dispatch.h"

namespace spgrad {
namespace {

// Calls f.operator()<index_t, scalar_t>() for the real floating-point dtypes.
template <class F>
void dispatch_real_float(ScalarType index, ScalarType value, F&& f) {
  dispatch_index(index, [&]<class index_t>() {
    switch (value) {
      case ScalarType::Float:
        return f.template operator()<index_t, float>();
      case ScalarType::Double:
        return f.template operator()<index_t, double>();
      case ScalarType::BFloat16:
        return f.template operator()<index_t, BFloat16>();
      case ScalarType::Half:
        return f.template operator()<index_t, Half>();
      default:
        STD_TORCH_CHECK(false, "spgrad: the softmax of dtype ", value, " is not supported.");
    }
  });
}

// ptr (m + 1), perm (nse) or null, val and out (nse, d), allocated and not initialised; perm is a
// bijection. Each segment of a column is computed on its own, and a segment longer than kBlock in
// blocks of a fixed size, so results do not depend on the number of threads. O(nse d + m) time;
// memory for three numbers for each block of a long segment.
template <int kBytes, class index_t, class T>
SPGRAD_INLINE void softmax_segments(const Segments<index_t> segments, const T* val, bool log,
                                    int64_t first, int64_t last, T* out) {
  using F = calc_t<T>;
  constexpr int kElements = kFull<T, kBytes>;
  const auto columns = [&]<int kWidth>() {
    softmax_columns<kWidth>(segments, val, log, first, last, out);
  };
  if (with_columns<T, kBytes>(segments.d, columns)) return;
  const bool in_place = segments.template in_place<T>();
  Buffer<F> of_x, of_y;
  for_buffers(segments, first, last, !in_place, [&](int64_t from, int64_t to) {
    const int64_t begin = segments.ptr[from], end = segments.ptr[to];
    const int64_t limit = in_place ? end : end + kElements;
    for (int64_t j = 0; j < segments.d; ++j) {
      const F* x = of_x.elements;
      F* y = of_y.elements;
      if (in_place) {
        x = reinterpret_cast<const F*>(val) + begin;
        y = reinterpret_cast<F*>(out) + begin;
      } else {
        gather(segments, val, j, begin, end, of_x.elements);
      }
      for (int64_t i = from; i < to; ++i) {
        const int64_t p = segments.ptr[i], count = segments.length(i);
        const bool room = p + (count / kElements + 1) * kElements <= limit;
        if (count > 0) Softmax<kBytes, F>::forward(x + p - begin, count, log, room, y + p - begin);
      }
      if (!in_place) scatter_column(segments, y, j, begin, end, out);
    }
  });
}

// The softmax of segment i, in blocks: their maxima, then their sums, then the result.
template <class index_t, class T>
void softmax_long(const Segments<index_t>& segments, const T* val, bool log, int64_t i, T* out) {
  using F = calc_t<T>;
  const int64_t d = segments.d;
  const auto most = (segments.length(i) + segments.at_once() - 1) / segments.at_once();
  const auto partial = array<F>(most * d);
  const auto max = array<F>(d), sum = zeros<F>(d);
  std::fill_n(max.get(), d, -std::numeric_limits<F>::infinity());
  const auto blocks = [&](const auto& f) {
    for_blocks(segments, i, [&](int64_t block, int64_t begin, int64_t end) {
      Buffer<F> x, y;
      with_vectors([&]<int kBytes>() {
        for (int64_t j = 0; j < d; ++j) {
          gather(segments, val, j, begin, end, x.elements);
          f.template operator()<kBytes>(x.elements, y.elements, block, j, begin, end);
        }
      });
    });
  };
  blocks([&]<int kBytes>(const F* x, F*, int64_t block, int64_t j, int64_t begin, int64_t end) {
    partial[block * d + j] = Softmax<kBytes, F>::largest(x, end - begin, true);
  });
  for (int64_t block = 0; block < most; ++block) {
    for (int64_t j = 0; j < d; ++j) max[j] = Larger()(partial[block * d + j], max[j]);
  }
  blocks([&]<int kBytes>(const F* x, F* y, int64_t block, int64_t j, int64_t begin, int64_t end) {
    partial[block * d + j] = Softmax<kBytes, F>::total(x, end - begin, max[j], true, y);
  });
  for (int64_t block = 0; block < most; ++block) {
    for (int64_t j = 0; j < d; ++j) sum[j] += partial[block * d + j];
  }
  blocks([&]<int kBytes>(const F* x, F* y, int64_t, int64_t j, int64_t begin, int64_t end) {
    if (!log) Softmax<kBytes, F>::total(x, end - begin, max[j], true, y);
    Softmax<kBytes, F>::finish(x, end - begin, max[j], sum[j], log, y);
    scatter_column(segments, y, j, begin, end, out);
  });
}

Tensor segment_softmax(const Tensor& ptr, const std::optional<Tensor>& perm, const Tensor& val,
                       bool log) {
  Tensor out = empty_columns(val, val.size(0));
  dispatch_real_float(ptr.scalar_type(), val.scalar_type(), [&]<class index_t, class T>() {
    const auto segments = checked_segments<index_t>(ptr, perm, val, "val");
    const T* from = data<T>(val);
    T* to = mutable_data<T>(out);
    const auto few = [&](int64_t first, int64_t last) {
      with_vectors(
          [&]<int kBytes>() { softmax_segments<kBytes>(segments, from, log, first, last, to); });
    };
    for_segments(segments, 8, few, [&](int64_t i) { softmax_long(segments, from, log, i, to); });
  });
  return out;
}

// The gradient of segments that are not longer than kBlock: y (nse, d) is the result of the
// forward, g (nse, d) its cotangent.
template <int kBytes, class index_t, class T>
SPGRAD_INLINE void softmax_backward_segments(const Segments<index_t> segments, const T* y,
                                             const T* g, bool log, int64_t first, int64_t last,
                                             T* out) {
  using F = calc_t<T>;
  constexpr int kElements = kFull<T, kBytes>;
  const auto columns = [&]<int kWidth>() {
    softmax_backward_columns<kWidth>(segments, y, g, log, first, last, out);
  };
  if (with_columns<T, kBytes>(segments.d, columns)) return;
  const bool in_place = segments.template in_place<T>();
  Buffer<F> for_y, for_g, for_out;
  for_buffers(segments, first, last, !in_place, [&](int64_t from, int64_t to) {
    const int64_t begin = segments.ptr[from], end = segments.ptr[to];
    const int64_t limit = in_place ? end : end + kElements;
    for (int64_t j = 0; j < segments.d; ++j) {
      const F *of_y = for_y.elements, *of_g = for_g.elements;
      F* result = for_out.elements;
      if (in_place) {
        of_y = reinterpret_cast<const F*>(y) + begin;
        of_g = reinterpret_cast<const F*>(g) + begin;
        result = reinterpret_cast<F*>(out) + begin;
      } else {
        gather(segments, y, j, begin, end, for_y.elements);
        gather(segments, g, j, begin, end, for_g.elements);
      }
      for (int64_t i = from; i < to; ++i) {
        const int64_t p = segments.ptr[i], at = p - begin, count = segments.length(i);
        const bool room = p + (count / kElements + 1) * kElements <= limit;
        Softmax<kBytes, F>::backward(of_y + at, of_g + at, count, log, room, result + at);
      }
      if (!in_place) scatter_column(segments, result, j, begin, end, out);
    }
  });
}

// The gradient of segment i, in blocks: their sums, then the result.
template <class index_t, class T>
void softmax_backward_long(const Segments<index_t>& segments, const T* y, const T* g, bool log,
                           int64_t i, T* out) {
  using F = calc_t<T>;
  const int64_t d = segments.d;
  const auto most = (segments.length(i) + segments.at_once() - 1) / segments.at_once();
  const auto partial = array<F>(most * d);
  const auto sum = zeros<F>(d);
  const auto blocks = [&](const auto& f) {
    for_blocks(segments, i, [&](int64_t block, int64_t begin, int64_t end) {
      Buffer<F> of_y, of_g;
      with_vectors([&]<int kBytes>() {
        for (int64_t j = 0; j < d; ++j) {
          gather(segments, y, j, begin, end, of_y.elements);
          gather(segments, g, j, begin, end, of_g.elements);
          f.template operator()<kBytes>(of_y.elements, of_g.elements, block, j, begin, end);
        }
      });
    });
  };
  blocks([&]<int kBytes>(F* of_y, F* of_g, int64_t block, int64_t j, int64_t begin, int64_t end) {
    partial[block * d + j] = Softmax<kBytes, F>::dot(of_y, of_g, end - begin, log, true);
  });
  for (int64_t block = 0; block < most; ++block) {
    for (int64_t j = 0; j < d; ++j) sum[j] += partial[block * d + j];
  }
  blocks([&]<int kBytes>(F* of_y, F* of_g, int64_t, int64_t j, int64_t begin, int64_t end) {
    Softmax<kBytes, F>::finish_backward(of_y, of_g, end - begin, sum[j], log, true, of_g);
    scatter_column(segments, of_g, j, begin, end, out);
  });
}

Tensor segment_softmax_backward(const Tensor& ptr, const std::optional<Tensor>& perm,
                                const Tensor& out, const Tensor& g, bool log) {
  check_tensor(g, out.dim(), out.scalar_type(), "g");
  for (int64_t dim = 0; dim < out.dim(); ++dim) check_size(g, dim, out.size(dim), "g");
  Tensor grad = empty_columns(out, out.size(0));
  dispatch_real_float(ptr.scalar_type(), out.scalar_type(), [&]<class index_t, class T>() {
    const auto segments = checked_segments<index_t>(ptr, perm, out, "out");
    const T *of_y = data<T>(out), *of_g = data<T>(g);
    T* to = mutable_data<T>(grad);
    const auto few = [&](int64_t first, int64_t last) {
      with_vectors([&]<int kBytes>() {
        softmax_backward_segments<kBytes>(segments, of_y, of_g, log, first, last, to);
      });
    };
    for_segments(segments, 8, few,
                 [&](int64_t i) { softmax_backward_long(segments, of_y, of_g, log, i, to); });
  });
  return grad;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("segment_softmax", SPGRAD_BOX(&segment_softmax));
  m.impl("segment_softmax_backward", SPGRAD_BOX(&segment_softmax_backward));
}

}  // namespace spgrad
