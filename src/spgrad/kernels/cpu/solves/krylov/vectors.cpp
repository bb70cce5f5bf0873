// Updates of the vectors of Krylov methods, and products with a matrix. Each also computes the
// scalar products whose operands it reads or writes anyway.
#include "solves/krylov/vectors.h"

#include <tuple>

#include "common/dispatch.h"
#include "common/split_rows.h"
#include "products/spmm.h"
#include "reading/traffic.h"

namespace spgrad {
namespace {

// y -= f0 v + f1 before, and the squares of the new y; without `before`, y -= f0 v.
template <class scalar_t>
SPGRAD_CLONES void subtract_chunk(scalar_t* __restrict y, const scalar_t* __restrict v,
                                  const scalar_t* __restrict before,
                                  const scalar_t* __restrict factors, int64_t count, int64_t n,
                                  double* __restrict sums) {
  if (before == nullptr) {
    return sum_elements<2>(count, n, factors, sums, [&](int64_t i, const auto& by) {
      const scalar_t now = y[i] - v[i] * by(0);
      y[i] = now;
      return wide_square(now);
    });
  }
  sum_elements<2>(count, n, factors, sums, [&](int64_t i, const auto& by) {
    const scalar_t now = y[i] - v[i] * by(0) - before[i] * by(1);
    y[i] = now;
    return wide_square(now);
  });
}

template <class scalar_t>
SPGRAD_CLONES void scale_chunk(scalar_t* __restrict v, const scalar_t* __restrict factor,
                               int64_t count, int64_t n) {
  for_elements<1>(count, n, factor, [&](int64_t i, const auto& by) { v[i] = v[i] * by(0); });
}

void krylov_active(const Tensor& active, const Tensor& squares, const Tensor& bounds,
                   const Tensor& broken) {
  check_tensor(active, 2, ScalarType::Bool, "active");
  const VectorShape s{.items = active.size(0), .m = 0, .n = active.size(1)};
  bool* const going = mutable_data<bool>(active);
  const double *size = reals(squares, s, "squares"), *bound = reals(bounds, s, "bounds");
  const bool* const stopped = mask(broken, s, "broken");
  for (int64_t i = 0; i < s.columns(); ++i) going[i] = size[i] > bound[i] && !stopped[i];
}

int64_t krylov_left(const Tensor& active, const Tensor& squares, const Tensor& bounds,
                    const Tensor& broken) {
  krylov_active(active, squares, bounds, broken);
  const int64_t items = active.size(0), n = active.size(1);
  const bool* const going = data<bool>(active);
  int64_t left = 0;
  for (int64_t j = 0; j < n; ++j) {
    bool any = false;
    for (int64_t item = 0; item < items && !any; ++item) any = going[item * n + j];
    left += any;
  }
  return left;
}

Tensor krylov_dot(const Tensor& a, const Tensor& b) {
  const VectorShape s = shape_of(a, "a");
  check_alike(b, a, "b");
  const ScalarType dtype = a.scalar_type();
  const bool real = dtype == ScalarType::Float || dtype == ScalarType::Double;
  Tensor out = empty(a, {s.items, s.n}, real ? ScalarType::Double : ScalarType::ComplexDouble);
  dispatch_solvable(dtype, [&]<class scalar_t>() {
    const scalar_t *left = data<scalar_t>(a), *right = data<scalar_t>(b);
    sum_chunks(s, s.n, mutable_data<wide_t<scalar_t>>(out),
               [&](int64_t start, int64_t count, int64_t, wide_t<scalar_t>* sums) {
                 dot_chunk(left + start, right + start, count, s.n, sums);
               });
  });
  return out;
}

Tensor krylov_subtract(const Tensor& y, const Tensor& v, const Tensor& alpha,
                       const std::optional<Tensor>& before, const std::optional<Tensor>& beta) {
  const VectorShape s = shape_of(y, "y");
  check_alike(v, y, "v");
  STD_TORCH_CHECK(before.has_value() == beta.has_value(),
                  "spgrad: `before` and `beta` are given together, or neither is.");
  if (before) check_alike(*before, y, "before");
  const Scalars first(alpha, s, "alpha"), second(beta ? *beta : alpha, s, "beta");
  Tensor out = empty(y, {s.items, s.n}, ScalarType::Double);
  dispatch_solvable(y.scalar_type(), [&]<class scalar_t>() {
    Factors<2, scalar_t> factors(s);
    for (int64_t i = 0; i < s.columns(); ++i) factors.set(i, first.real(i), second.real(i));
    scalar_t* const changed = mutable_data<scalar_t>(y);
    const scalar_t *one = data<scalar_t>(v), *other = data<scalar_t>(before);
    sum_chunks(s, s.n, mutable_data<double>(out),
               [&](int64_t start, int64_t count, int64_t item, double* sums) {
                 subtract_chunk(changed + start, one + start, other ? other + start : nullptr,
                                factors.of(item), count, s.n, sums);
               });
  });
  return out;
}

Tensor krylov_normalise(const Tensor& v, const Tensor& squares) {
  const VectorShape s = shape_of(v, "v");
  const double* square = reals(squares, s, "squares");
  Tensor out = empty(v, {s.items, s.n}, ScalarType::Double);
  double* const size = mutable_data<double>(out);
  dispatch_solvable(v.scalar_type(), [&]<class scalar_t>() {
    Factors<1, scalar_t> factors(s);
    for (int64_t i = 0; i < s.columns(); ++i) {
      size[i] = std::sqrt(square[i]);
      factors.set(i, inverse(size[i]));
    }
    scalar_t* const changed = mutable_data<scalar_t>(v);
    for_chunks(s, [&](int64_t start, int64_t count, int64_t item, int64_t) {
      scale_chunk(changed + start, factors.of(item), count, s.n);
    });
  });
  return out;
}

// y = A x of one column, and the scalar products of x and y, which are formed for the rows of a
// chunk while these are in the caches. A row that is too long for one thread is added up as in
// `spmm`, before all scalar products. The order of each sum is that of `spmm` and of `krylov_dot`.
template <class index_t, class scalar_t>
void product_and_dot(Spmm<index_t, scalar_t> a, const VectorShape& s, const Tensor& y,
                     double* out) {
  choose_few_way(a, 0, s.items * s.m);
  const auto dot = [&](int64_t start, int64_t count, int64_t, double* sum) {
    dot_chunk(a.x + start, a.y + start, count, 1, sum);
  };
  const SplitRows<index_t> split(a.ptr, s.items * s.m, 1);
  if (split.slots() == 0) {
    return sum_chunks(s, s.n, out, [&](int64_t start, int64_t count, int64_t item, double* sum) {
      spmm_lines(a, start, start + count);
      dot(start, count, item, sum);
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
  sum_chunks(s, s.n, out, dot);
}

std::tuple<Tensor, Tensor> krylov_product(const Tensor& ptr, const Tensor& idx, const Tensor& val,
                                          const Tensor& x) {
  const VectorShape s = shape_of(x, "x");
  check_view(ptr, idx, std::nullopt);
  check_size(ptr, 0, s.items * s.m + 1, "ptr");
  check_tensor(val, 1, x.scalar_type(), "val");
  check_size(val, 0, idx.size(0), "val");
  check_size(x, 2, 1, "x");
  Tensor y = empty(x, {s.items, s.m, 1}), out = empty(x, {s.items, 1}, ScalarType::Double);
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    dispatch_real(x, "x", [&]<class scalar_t>() {
      const Spmm<index_t, scalar_t> a{
          .ptr = data<index_t>(ptr),
          .idx = data<index_t>(idx),
          .perm = nullptr,
          .val = data<scalar_t>(val),
          .x = data<scalar_t>(x),
          .y = mutable_data<scalar_t>(y),
          .n = 1,
          .nse = idx.size(0),
          .traffic = choose_traffic(idx, x, {.sums_only = true, .lines = ptr.size(0) - 1})};
      product_and_dot(a, s, y, mutable_data<double>(out));
    });
  });
  return {y, out};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("krylov_active", SPGRAD_BOX(&krylov_active));
  m.impl("krylov_left", SPGRAD_BOX(&krylov_left));
  m.impl("krylov_dot", SPGRAD_BOX(&krylov_dot));
  m.impl("krylov_normalise", SPGRAD_BOX(&krylov_normalise));
  m.impl("krylov_product", SPGRAD_BOX(&krylov_product));
  m.impl("krylov_subtract", SPGRAD_BOX(&krylov_subtract));
}

}  // namespace spgrad
