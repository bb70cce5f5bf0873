// The vectors and scalars of a step of conjugate gradients.
#include "solves/krylov/vectors.h"

namespace spgrad {
namespace {

// r -= alpha q, and the squares of the new r.
template <class scalar_t>
SPGRAD_CLONES void residual_chunk(scalar_t* __restrict r, const scalar_t* __restrict q,
                                  const scalar_t* __restrict alpha, int64_t count, int64_t n,
                                  double* __restrict sums) {
  sum_elements<1>(count, n, alpha, sums, [&](int64_t i, const auto& by) {
    const scalar_t now = r[i] - q[i] * by(0);
    r[i] = now;
    return wide_square(now);
  });
}

// x += f0 p, then p = z + f1 p.
template <class scalar_t>
SPGRAD_CLONES void direction_chunk(scalar_t* __restrict x, scalar_t* __restrict p,
                                   const scalar_t* __restrict z, const scalar_t* __restrict factors,
                                   int64_t count, int64_t n) {
  for_elements<2>(count, n, factors, [&](int64_t i, const auto& by) {
    const scalar_t old = p[i];
    x[i] = x[i] + old * by(0);
    p[i] = z[i] + old * by(1);
  });
}

Tensor cg_residual(const Tensor& r, const Tensor& alpha, const Tensor& q, const Tensor& rho,
                   const Tensor& curvature, const Tensor& active, const Tensor& broken) {
  const VectorShape s = shape_of(r, "r");
  check_alike(q, r, "q");
  const Scalars over(rho, s, "rho"), under(curvature, s, "curvature");
  const bool* going = mask(active, s, "active");
  bool* const stopped = changed_mask(broken, s, "broken");
  double* const ratio = changed_reals(alpha, s, "alpha");
  Tensor squares = empty(r, {s.items, s.n}, ScalarType::Double);
  dispatch_solvable(r.scalar_type(), [&]<class scalar_t>() {
    Factors<1, scalar_t> factors(s);
    for (int64_t i = 0; i < s.columns(); ++i) {
      const bool positive = over.real(i) > 0 && under.real(i) > 0;
      if (going[i] && !positive) stopped[i] = true;
      ratio[i] = going[i] && positive ? over.real(i) / under.real(i) : 0;
      factors.set(i, ratio[i]);
    }
    scalar_t* const changed = mutable_data<scalar_t>(r);
    const scalar_t* const read = data<scalar_t>(q);
    sum_chunks(s, s.n, mutable_data<double>(squares),
               [&](int64_t start, int64_t count, int64_t item, double* sums) {
                 residual_chunk(changed + start, read + start, factors.of(item), count, s.n, sums);
               });
  });
  return squares;
}

void cg_direction(const Tensor& x, const Tensor& p, const Tensor& z, const Tensor& alpha,
                  const Tensor& rho, const Tensor& before, const Tensor& active) {
  const VectorShape s = shape_of(x, "x");
  check_alike(p, x, "p");
  check_alike(z, x, "z");
  const double* const step = reals(alpha, s, "alpha");
  const Scalars over(rho, s, "rho"), under(before, s, "before");
  const bool* going = mask(active, s, "active");
  dispatch_solvable(x.scalar_type(), [&]<class scalar_t>() {
    Factors<2, scalar_t> factors(s);
    for (int64_t i = 0; i < s.columns(); ++i) {
      factors.set(i, step[i], going[i] ? quotient(over.real(i), under.real(i)) : 0.0);
    }
    scalar_t *moved = mutable_data<scalar_t>(x), *direction = mutable_data<scalar_t>(p);
    const scalar_t* next = data<scalar_t>(z);
    for_chunks(s, [&](int64_t start, int64_t count, int64_t item, int64_t) {
      direction_chunk(moved + start, direction + start, next + start, factors.of(item), count, s.n);
    });
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("cg_residual", SPGRAD_BOX(&cg_residual));
  m.impl("cg_direction", SPGRAD_BOX(&cg_direction));
}

}  // namespace spgrad
