// Updates of the vectors of Krylov methods, and products with a matrix. Each also computes the
// scalar products whose operands it reads or writes anyway.
#include <algorithm>
#include <tuple>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/split_rows.h"
#include "common/threads.h"
#include "products/spmm.h"
#include "reading/traffic.h"
#include "solves/dtypes.h"

namespace spgrad {
namespace {

// Vectors are (items, m, n), contiguous: n columns side by side. Scalars are (items, n). Sums are
// formed in 64 bits over chunks of rows, then over the chunks of an item in their order. The chunks
// depend on the shape alone, so results do not depend on the number of threads.
constexpr int64_t kChunk = 8192;
constexpr int kLanes = 16;  // the number of sums into which one column is split

template <class T>
struct Wide {
  using type = double;
};
template <class T>
struct Wide<Complex<T>> {
  using type = Complex<double>;
};
template <class T>
using wide_t = typename Wide<T>::type;

SPGRAD_INLINE double wide_product(float a, float b) { return double{a} * b; }
SPGRAD_INLINE double wide_product(double a, double b) { return a * b; }
template <class T>
SPGRAD_INLINE Complex<double> wide_product(Complex<T> a, Complex<T> b) {  // conj(a) b
  return Complex<double>(a.re, -a.im) * Complex<double>(b.re, b.im);
}

SPGRAD_INLINE double wide_square(float a) { return double{a} * a; }
SPGRAD_INLINE double wide_square(double a) { return a * a; }
template <class T>
SPGRAD_INLINE double wide_square(Complex<T> a) {
  return double{a.re} * a.re + double{a.im} * a.im;
}

struct Shape {
  int64_t items, m, n;
  int64_t rows() const { return std::max<int64_t>(1, kChunk / std::max<int64_t>(n, 1)); }
  int64_t chunks() const { return (m + rows() - 1) / rows(); }  // of an item
};

// Elements [first, last) of one column, or, with n > 1, of whole rows. sums has n elements.
template <class scalar_t>
SPGRAD_CLONES void dot_chunk(const scalar_t* a, const scalar_t* b, int64_t count, int64_t n,
                             wide_t<scalar_t>* sums) {
  using wide = wide_t<scalar_t>;
  if (n > 1) {
    for (int64_t j = 0; j < n; ++j) sums[j] = wide{};
    for (int64_t i = 0; i < count; i += n) {
      for (int64_t j = 0; j < n; ++j) sums[j] += wide_product(a[i + j], b[i + j]);
    }
    return;
  }
  wide lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += wide_product(a[i + l], b[i + l]);
  }
  for (int l = 0; i < count; ++i, ++l) lanes[l] += wide_product(a[i], b[i]);
  wide sum{};
  for (int l = 0; l < kLanes; ++l) sum += lanes[l];
  sums[0] = sum;
}

// r -= alpha q, and the squares of the new r.
template <class scalar_t>
SPGRAD_CLONES void residual_chunk(scalar_t* __restrict r, const scalar_t* __restrict q,
                                  const scalar_t* __restrict alpha, int64_t count, int64_t n,
                                  double* __restrict sums) {
  if (n > 1) {
    for (int64_t j = 0; j < n; ++j) sums[j] = 0;
    for (int64_t i = 0; i < count; i += n) {
      for (int64_t j = 0; j < n; ++j) {
        const scalar_t now = r[i + j] - q[i + j] * alpha[j];
        r[i + j] = now;
        sums[j] += wide_square(now);
      }
    }
    return;
  }
  const scalar_t by = alpha[0];
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const scalar_t now = r[i + l] - q[i + l] * by;
      r[i + l] = now;
      lanes[l] += wide_square(now);
    }
  }
  for (int l = 0; i < count; ++i, ++l) {
    const scalar_t now = r[i] - q[i] * by;
    r[i] = now;
    lanes[l] += wide_square(now);
  }
  double sum = 0;
  for (int l = 0; l < kLanes; ++l) sum += lanes[l];
  sums[0] = sum;
}

// x += alpha p, then p = z + beta p.
template <class scalar_t>
SPGRAD_CLONES void direction_chunk(scalar_t* __restrict x, scalar_t* __restrict p,
                                   const scalar_t* __restrict z, const scalar_t* __restrict alpha,
                                   const scalar_t* __restrict beta, int64_t count, int64_t n) {
  if (n > 1) {
    for (int64_t i = 0; i < count; i += n) {
      for (int64_t j = 0; j < n; ++j) {
        const scalar_t old = p[i + j];
        x[i + j] = x[i + j] + old * alpha[j];
        p[i + j] = z[i + j] + old * beta[j];
      }
    }
    return;
  }
  const scalar_t step = alpha[0], turn = beta[0];
  for (int64_t i = 0; i < count; ++i) {
    const scalar_t old = p[i];
    x[i] = x[i] + old * step;
    p[i] = z[i] + old * turn;
  }
}

// Calls f(start, count, item, chunk) for every chunk, with its elements, its item, and its number
// among all chunks.
template <class F>
void for_chunks(const Shape& s, const F& f) {
  const int64_t rows = s.rows(), per_item = s.chunks();
  const int64_t grain = std::max<int64_t>(1, kSerialWork / (rows * std::max<int64_t>(s.n, 1)));
  auto run = [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      const int64_t item = chunk / per_item, from = chunk % per_item * rows;
      const int64_t to = std::min(from + rows, s.m);
      f((item * s.m + from) * s.n, (to - from) * s.n, item, chunk);
    }
  };
  const int64_t chunks = s.items * per_item;
  if (chunks <= grain) return run(0, chunks);
  torch::stable::parallel_for(0, chunks, grain, run);
}

// Adds the sums of chunks to the sums (items, n) of the items.
template <class T>
void add_chunks(const Shape& s, const T* partial, T* out) {
  for (int64_t item = 0; item < s.items; ++item) {
    for (int64_t j = 0; j < s.n; ++j) out[item * s.n + j] = T{};
    for (int64_t c = item * s.chunks(); c < (item + 1) * s.chunks(); ++c) {
      for (int64_t j = 0; j < s.n; ++j) out[item * s.n + j] += partial[c * s.n + j];
    }
  }
}

Shape shape_of(const Tensor& a, const char* name) {
  check_tensor(a, 3, a.scalar_type(), name);
  return {.items = a.size(0), .m = a.size(1), .n = a.size(2)};
}

void check_alike(const Tensor& b, const Tensor& a, const char* name) {
  check_tensor(b, 3, a.scalar_type(), name);
  for (int64_t d = 0; d < 3; ++d) check_size(b, d, a.size(d), name);
}

template <class scalar_t>
scalar_t rounded(double value) {
  return scalar_t(value);
}
template <class scalar_t>
scalar_t rounded(Complex<double> value) {
  if constexpr (std::is_floating_point_v<scalar_t>) {
    return static_cast<scalar_t>(value.re);
  } else {
    using real = decltype(scalar_t{}.re);
    return {static_cast<real>(value.re), static_cast<real>(value.im)};
  }
}

// Scalars (items, n) of 64 bits, in the dtype of the vectors.
template <class scalar_t>
List<scalar_t> scalars(const Tensor& by, const Shape& s, const char* name) {
  const bool complex = by.scalar_type() == ScalarType::ComplexDouble;
  check_tensor(by, 2, complex ? ScalarType::ComplexDouble : ScalarType::Double, name);
  check_size(by, 0, s.items, name);
  check_size(by, 1, s.n, name);
  STD_TORCH_CHECK(!complex || !std::is_floating_point_v<scalar_t>, "spgrad: `", name,
                  "` is complex, and the vectors are real.");
  List<scalar_t> out(s.items * s.n);
  for (int64_t i = 0; i < s.items * s.n; ++i) {
    out[i] = complex ? rounded<scalar_t>(data<Complex<double>>(by)[i])
                     : rounded<scalar_t>(data<double>(by)[i]);
  }
  return out;
}

Tensor krylov_dot(const Tensor& a, const Tensor& b) {
  const Shape s = shape_of(a, "a");
  check_alike(b, a, "b");
  const ScalarType dtype = a.scalar_type();
  const bool real = dtype == ScalarType::Float || dtype == ScalarType::Double;
  Tensor out = empty(a, {s.items, s.n}, real ? ScalarType::Double : ScalarType::ComplexDouble);
  dispatch_solvable(dtype, [&]<class scalar_t>() {
    using wide = wide_t<scalar_t>;
    List<wide> partial(s.items * s.chunks() * s.n);
    const scalar_t *left = data<scalar_t>(a), *right = data<scalar_t>(b);
    for_chunks(s, [&](int64_t start, int64_t count, int64_t, int64_t chunk) {
      dot_chunk(left + start, right + start, count, s.n, partial.data() + chunk * s.n);
    });
    add_chunks(s, partial.data(), mutable_data<wide>(out));
  });
  return out;
}

Tensor krylov_residual(const Tensor& r, const Tensor& q, const Tensor& alpha) {
  const Shape s = shape_of(r, "r");
  check_alike(q, r, "q");
  Tensor out = empty(r, {s.items, s.n}, ScalarType::Double);
  dispatch_solvable(r.scalar_type(), [&]<class scalar_t>() {
    const List<scalar_t> by = scalars<scalar_t>(alpha, s, "alpha");
    List<double> partial(s.items * s.chunks() * s.n);
    scalar_t* changed = mutable_data<scalar_t>(r);
    const scalar_t* read = data<scalar_t>(q);
    for_chunks(s, [&](int64_t start, int64_t count, int64_t item, int64_t chunk) {
      residual_chunk(changed + start, read + start, by.data() + item * s.n, count, s.n,
                     partial.data() + chunk * s.n);
    });
    add_chunks(s, partial.data(), mutable_data<double>(out));
  });
  return out;
}

void krylov_direction(const Tensor& x, const Tensor& p, const Tensor& z, const Tensor& alpha,
                      const Tensor& beta) {
  const Shape s = shape_of(x, "x");
  check_alike(p, x, "p");
  check_alike(z, x, "z");
  dispatch_solvable(x.scalar_type(), [&]<class scalar_t>() {
    const List<scalar_t> step = scalars<scalar_t>(alpha, s, "alpha");
    const List<scalar_t> turn = scalars<scalar_t>(beta, s, "beta");
    scalar_t *moved = mutable_data<scalar_t>(x), *direction = mutable_data<scalar_t>(p);
    const scalar_t* next = data<scalar_t>(z);
    for_chunks(s, [&](int64_t start, int64_t count, int64_t item, int64_t) {
      direction_chunk(moved + start, direction + start, next + start, step.data() + item * s.n,
                      turn.data() + item * s.n, count, s.n);
    });
  });
}

// y = A x of one column, and the scalar products of x and y, which are formed for the rows of a
// chunk while these are in the caches. A row that is too long for one thread is added up as in
// `spmm`, before all scalar products. The order of each sum is that of `spmm` and of `krylov_dot`.
template <class index_t, class scalar_t>
void product_and_dot(const Spmm<index_t, scalar_t>& a, const Shape& s, const Tensor& y,
                     double* partial) {
  const auto dot = [&](int64_t start, int64_t count, int64_t, int64_t chunk) {
    dot_chunk(a.x + start, a.y + start, count, 1, partial + chunk);
  };
  const SplitRows<index_t> split(a.ptr, s.items * s.m);
  if (split.slots() == 0) {
    return for_chunks(s, [&](int64_t start, int64_t count, int64_t item, int64_t chunk) {
      spmm_lines(a, start, start + count);
      dot(start, count, item, chunk);
    });
  }
  const Tensor joined = empty(y, {split.slots()});
  scalar_t* const pieces = mutable_data<scalar_t>(joined);
  split.parallel(1, [&](const typename SplitRows<index_t>::Part& part) {
    Spmm<index_t, scalar_t> lines = a;
    lines.ptr = part.starts;
    if (part.row >= 0) lines.y = pieces + part.slot;
    spmm_lines(lines, part.first, part.last);
  });
  split.join(pieces, 1, a.y);
  for_chunks(s, dot);
}

std::tuple<Tensor, Tensor> krylov_product(const Tensor& ptr, const Tensor& idx, const Tensor& val,
                                          const Tensor& x) {
  const Shape s = shape_of(x, "x");
  check_view(ptr, idx, std::nullopt);
  check_size(ptr, 0, s.items * s.m + 1, "ptr");
  check_tensor(val, 1, x.scalar_type(), "val");
  check_size(val, 0, idx.size(0), "val");
  check_size(x, 2, 1, "x");
  Tensor y = empty(x, {s.items, s.m, 1}), out = empty(x, {s.items, 1}, ScalarType::Double);
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    dispatch_solvable(x.scalar_type(), [&]<class scalar_t>() {
      if constexpr (std::is_floating_point_v<scalar_t>) {
        const Spmm<index_t, scalar_t> a{.ptr = data<index_t>(ptr),
                                        .idx = data<index_t>(idx),
                                        .perm = nullptr,
                                        .val = data<scalar_t>(val),
                                        .x = data<scalar_t>(x),
                                        .y = mutable_data<scalar_t>(y),
                                        .n = 1,
                                        .nse = idx.size(0),
                                        .traffic = choose_traffic(idx, x, {.sums_only = true})};
        List<double> partial(s.items * s.chunks());
        product_and_dot(a, s, y, partial.data());
        add_chunks(s, partial.data(), mutable_data<double>(out));
      } else {
        STD_TORCH_CHECK(false, "spgrad: `x` is complex; float32 and float64 are accepted.");
      }
    });
  });
  return {y, out};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("krylov_product", SPGRAD_BOX(&krylov_product));
  m.impl("krylov_dot", SPGRAD_BOX(&krylov_dot));
  m.impl("krylov_residual", SPGRAD_BOX(&krylov_residual));
  m.impl("krylov_direction", SPGRAD_BOX(&krylov_direction));
}

}  // namespace spgrad
