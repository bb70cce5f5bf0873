// The vectors and scalars of a step of LSMR.
#include <tuple>

#include "solves/krylov/vectors.h"

namespace spgrad {
namespace {

// v *= f0, h_bar = h + f1 h_bar, x += f2 h_bar, h = v + f3 h.
template <class scalar_t>
SPGRAD_CLONES void step_chunk(scalar_t* __restrict x, scalar_t* __restrict v,
                              scalar_t* __restrict h, scalar_t* __restrict h_bar,
                              const scalar_t* __restrict factors, int64_t count, int64_t n) {
  for_elements<4>(count, n, factors, [&](int64_t i, const auto& by) {
    const scalar_t next = v[i] * by(0), bar = h[i] + h_bar[i] * by(1);
    v[i] = next;
    h_bar[i] = bar;
    x[i] = x[i] + bar * by(2);
    h[i] = next + h[i] * by(3);
  });
}

// c, s and r with c a + s b = r and s a - c b = 0.
struct Rotation {
  double c, s, r;
  Rotation(double a, double b) : r(std::hypot(a, b)) {
    const double shrunk = inverse(r);
    c = r == 0 ? 1 : a * shrunk;
    s = b * shrunk;
  }
};

// The scalars that a column keeps from step to step; the last five are those of the residual.
struct Column {
  double alpha_bar, zeta_bar, rho, rho_bar, c_bar, s_bar, zeta;
  double beta_dd, beta_d, rho_d, tau, theta_tilde;
};

// What a step multiplies the vectors of a column by, and the squared norm of the residual.
struct Turned {
  double back, step, ahead, square;
};

// The squared norm of b - A x (section 5.1 of the paper), from the zeta of the step before.
double residual(Column& a, const Rotation& first, double theta_bar, double zeta_before) {
  const double beta_hat = first.c * a.beta_dd;
  a.beta_dd = -first.s * a.beta_dd;
  const Rotation tilde(a.rho_d, theta_bar);
  a.tau = (zeta_before - a.theta_tilde * a.tau) * inverse(tilde.r);
  a.theta_tilde = tilde.s * a.rho_bar;
  a.rho_d = tilde.c * a.rho_bar;
  a.beta_d = -tilde.s * a.beta_d + tilde.c * beta_hat;
  const double left = a.beta_d - (a.zeta - a.theta_tilde * a.tau) * inverse(a.rho_d);
  return left * left + a.beta_dd * a.beta_dd;
}

// Turns the column by its two rotations. `going` becomes false where the space is exhausted, and
// `broken` true.
Turned turn(Column& a, double alpha, double beta, bool least, bool& going, bool& broken) {
  const double rhos_before = a.rho * a.rho_bar, zeta_before = a.zeta;
  const Rotation first(a.alpha_bar, beta);
  const double theta = first.s * alpha;
  a.alpha_bar = first.c * alpha;
  a.rho = first.r;
  const double theta_bar = a.s_bar * a.rho;
  const Rotation second(a.c_bar * a.rho, theta);
  a.c_bar = second.c;
  a.s_bar = second.s;
  a.rho_bar = second.r;
  a.zeta = a.c_bar * a.zeta_bar;
  a.zeta_bar = -a.s_bar * a.zeta_bar;
  if (going && (a.rho == 0 || a.rho_bar == 0)) broken = true;
  going = going && !broken;
  return {.back = -(theta_bar * a.rho) * inverse(rhos_before),
          .step = going ? quotient(a.zeta, a.rho * a.rho_bar) : 0,
          .ahead = -theta * inverse(a.rho),
          .square = least ? a.zeta_bar * a.zeta_bar : residual(a, first, theta_bar, zeta_before)};
}

std::tuple<Tensor, Tensor> lsmr_step(const Tensor& x, const Tensor& v, const Tensor& h,
                                     const Tensor& h_bar, const Tensor& state, const Tensor& beta,
                                     const Tensor& of_v, const Tensor& squares,
                                     const Tensor& active, const Tensor& broken, bool least) {
  const VectorShape s = shape_of(x, "x");
  for (const Tensor* vector : {&v, &h, &h_bar}) check_alike(*vector, x, "v, h, h_bar");
  double* const kept = state_of(state, s, sizeof(Column) / sizeof(double));
  const double *const size = reals(beta, s, "beta"), *const square = reals(of_v, s, "of_v");
  const double* const known = reals(squares, s, "squares");
  const bool* const goes = mask(active, s, "active");
  bool* const stopped = changed_mask(broken, s, "broken");
  const Tensor alpha = empty(x, {s.items, s.n}, ScalarType::Double);
  const Tensor found = empty(x, {s.items, s.n}, ScalarType::Double);
  double *const norm = mutable_data<double>(alpha), *const left = mutable_data<double>(found);
  dispatch_solvable(x.scalar_type(), [&]<class scalar_t>() {
    Factors<4, scalar_t> factors(s);
    for (int64_t i = 0; i < s.columns(); ++i) {
      bool going = goes[i];
      norm[i] = std::sqrt(square[i]);
      Column column = load<Column>(kept + i, s.columns());
      const Turned t = turn(column, norm[i], size[i], least, going, stopped[i]);
      store(column, kept + i, s.columns());
      factors.set(i, inverse(norm[i]), t.back, t.step, t.ahead);
      left[i] = going ? t.square : known[i];
    }
    scalar_t *const moved = mutable_data<scalar_t>(x), *const next = mutable_data<scalar_t>(v);
    scalar_t *const one = mutable_data<scalar_t>(h), *const bar = mutable_data<scalar_t>(h_bar);
    for_chunks(s, [&](int64_t start, int64_t count, int64_t item, int64_t) {
      step_chunk(moved + start, next + start, one + start, bar + start, factors.of(item), count,
                 s.n);
    });
  });
  return {alpha, found};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) { m.impl("lsmr_step", SPGRAD_BOX(&lsmr_step)); }

}  // namespace spgrad
