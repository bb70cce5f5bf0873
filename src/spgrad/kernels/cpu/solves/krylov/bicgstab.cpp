// The vectors and scalars of a step of BiCGSTAB.
#include <tuple>

#include "solves/krylov/vectors.h"

namespace spgrad {
namespace {

// x += f0 p, then r -= f0 q, and the squares of the new r. p may be r.
template <class scalar_t>
SPGRAD_CLONES void move_chunk(scalar_t* __restrict x, scalar_t* r, const scalar_t* p,
                              const scalar_t* __restrict q, const scalar_t* __restrict factor,
                              int64_t count, int64_t n, double* __restrict sums) {
  sum_elements<1>(count, n, factor, sums, [&](int64_t i, const auto& by) {
    x[i] = x[i] + p[i] * by(0);
    const scalar_t now = r[i] - q[i] * by(0);
    r[i] = now;
    return wide_square(now);
  });
}

// p = r + f1 (p - f0 v).
template <class scalar_t>
SPGRAD_CLONES void direction_chunk(scalar_t* __restrict p, const scalar_t* __restrict r,
                                   const scalar_t* __restrict v, const scalar_t* __restrict factors,
                                   int64_t count, int64_t n) {
  for_elements<2>(count, n, factors,
                  [&](int64_t i, const auto& by) { p[i] = r[i] + (p[i] - v[i] * by(0)) * by(1); });
}

// Scalars in the dtype of scalar products, float64 or complex128.
template <class wide>
const wide* wides(const Tensor& t, const VectorShape& s, const char* name) {
  constexpr bool real = std::is_same_v<wide, double>;
  check_columns_of(t, s, real ? ScalarType::Double : ScalarType::ComplexDouble, name);
  return data<wide>(t);
}

double size_of(double a) { return std::abs(a); }
double size_of(Complex<double> a) { return std::hypot(a.re, a.im); }

// The scalars of a column after a step.
template <class wide>
struct Column {
  wide rho, before, alpha, omega;
  double size;  // of the residual
};

// beta, which is 0 where the method starts anew with p = r. `lost` becomes true where that has to
// be with r as the shadow too, and `broken` where it is no way out.
template <class wide>
wide turn(const Column<wide>& a, double least, bool active, bool& lost, bool& broken) {
  const bool none = is_zero(a.alpha * a.omega);
  if (active && none && is_zero(a.alpha - a.omega)) broken = true;
  lost = none || size_of(a.rho) <= a.size * least;
  const bool goes = active && !lost;
  lost = lost && active;
  return goes ? quotient(a.rho * a.alpha, a.before * a.omega) : wide{};
}

// A column of one item: to = from.
template <class scalar_t>
void copy_column(const VectorShape& s, int64_t column, const scalar_t* from, scalar_t* to) {
  const int64_t start = column / s.n * s.m * s.n + column % s.n;
  for (int64_t i = 0; i < s.m; ++i) to[start + i * s.n] = from[start + i * s.n];
}

std::tuple<Tensor, Tensor> bicgstab_move(const Tensor& x, const Tensor& r, const Tensor& p,
                                         const Tensor& q, const Tensor& over, const Tensor& under,
                                         const Tensor& active) {
  const VectorShape s = shape_of(x, "x");
  for (const Tensor* vector : {&r, &p, &q}) check_alike(*vector, x, "r, p, q");
  const bool* const going = mask(active, s, "active");
  const Tensor ratio = empty(x, {s.items, s.n}, over.scalar_type());
  const Tensor squares = empty(x, {s.items, s.n}, ScalarType::Double);
  dispatch_solvable(x.scalar_type(), [&]<class scalar_t>() {
    using wide = wide_t<scalar_t>;
    const wide *const a = wides<wide>(over, s, "over"), *const b = wides<wide>(under, s, "under");
    Factors<1, scalar_t> factors(s);
    wide* const found = mutable_data<wide>(ratio);
    for (int64_t i = 0; i < s.columns(); ++i) {
      found[i] = going[i] ? quotient(a[i], b[i]) : wide{};
      factors.set(i, found[i]);
    }
    scalar_t *const moved = mutable_data<scalar_t>(x), *const changed = mutable_data<scalar_t>(r);
    const scalar_t *const along = data<scalar_t>(p), *const image = data<scalar_t>(q);
    sum_chunks(s, s.n, mutable_data<double>(squares),
               [&](int64_t start, int64_t count, int64_t item, double* sums) {
                 move_chunk(moved + start, changed + start, along + start, image + start,
                            factors.of(item), count, s.n, sums);
               });
  });
  return {ratio, squares};
}

Tensor bicgstab_direction(const Tensor& p, const Tensor& shadow, const Tensor& least,
                          const Tensor& r, const Tensor& v, const Tensor& rho, const Tensor& before,
                          const Tensor& alpha, const Tensor& omega, const Tensor& squares,
                          const Tensor& active, const Tensor& broken) {
  const VectorShape s = shape_of(p, "p");
  for (const Tensor* vector : {&shadow, &r, &v}) check_alike(*vector, p, "shadow, r, v");
  double* const smallest = changed_reals(least, s, "least");
  const double* const square = reals(squares, s, "squares");
  const bool* const going = mask(active, s, "active");
  bool* const stopped = changed_mask(broken, s, "broken");
  const Tensor kept = empty(p, {s.items, s.n}, rho.scalar_type());
  dispatch_solvable(p.scalar_type(), [&]<class scalar_t>() {
    using wide = wide_t<scalar_t>;
    const wide *const now = wides<wide>(rho, s, "rho"), *const old =
                                                            wides<wide>(before, s, "before");
    const wide* const step = wides<wide>(alpha, s, "alpha");
    const wide* const damping = wides<wide>(omega, s, "omega");
    const scalar_t* const residual = data<scalar_t>(r);
    wide* const next = mutable_data<wide>(kept);
    Factors<2, scalar_t> factors(s);
    for (int64_t i = 0; i < s.columns(); ++i) {
      const double size = std::sqrt(square[i]);
      bool lost = false;
      const Column<wide> column{now[i], old[i], step[i], damping[i], size};
      const wide beta = turn(column, smallest[i], going[i], lost, stopped[i]);
      factors.set(i, damping[i], beta);
      next[i] = lost ? wide(square[i]) : now[i];
      if (!lost) continue;
      smallest[i] = size * eps_of(scalar_t{});
      copy_column(s, i, residual, mutable_data<scalar_t>(shadow));
    }
    scalar_t* const direction = mutable_data<scalar_t>(p);
    const scalar_t* const image = data<scalar_t>(v);
    for_chunks(s, [&](int64_t start, int64_t count, int64_t item, int64_t) {
      direction_chunk(direction + start, residual + start, image + start, factors.of(item), count,
                      s.n);
    });
  });
  return kept;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("bicgstab_move", SPGRAD_BOX(&bicgstab_move));
  m.impl("bicgstab_direction", SPGRAD_BOX(&bicgstab_direction));
}

}  // namespace spgrad
