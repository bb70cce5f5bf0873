// The vectors and scalars of a step of MINRES.
#include "solves/krylov/vectors.h"

namespace spgrad {
namespace {

// w = f0 (z - f1 w_before - f2 w) in the memory of w_before, x += f3 w, v *= f4, and with y also
// z = f4 y. y may be v.
template <class scalar_t>
SPGRAD_CLONES void step_chunk(scalar_t* __restrict x, scalar_t* v, scalar_t* __restrict z,
                              const scalar_t* y, const scalar_t* __restrict w,
                              scalar_t* __restrict w_before, const scalar_t* __restrict factors,
                              int64_t count, int64_t n) {
  for_elements<5>(count, n, factors, [&](int64_t i, const auto& by) {
    const scalar_t now = (z[i] - w_before[i] * by(1) - w[i] * by(2)) * by(0);
    w_before[i] = now;
    x[i] = x[i] + now * by(3);
    if (y != nullptr) z[i] = y[i] * by(4);
    v[i] = v[i] * by(4);
  });
}

// r = f0 r + f1 v, and the squares of the new r.
template <class scalar_t>
SPGRAD_CLONES void residual_chunk(scalar_t* __restrict r, const scalar_t* __restrict v,
                                  const scalar_t* __restrict factors, int64_t count, int64_t n,
                                  double* __restrict sums) {
  sum_elements<2>(count, n, factors, sums, [&](int64_t i, const auto& by) {
    const scalar_t now = r[i] * by(0) + v[i] * by(1);
    r[i] = now;
    return wide_square(now);
  });
}

// The scalars that a column keeps from step to step.
struct Column {
  double gamma, c, c_before, s, s_before, eta;
};

// What a step multiplies the vectors of a column by.
struct Turned {
  double shrunk, third, second, step, normed, kept, share;
};

// Turns the column by its new rotation. `going` becomes false where the method breaks down, and
// `broken` true.
Turned turn(Column& a, double square, double delta, bool& going, bool& broken) {
  const double gamma = std::sqrt(square < 0 ? 0 : square);
  const double turned = a.c_before * a.gamma;
  const double first = a.c * delta - turned * a.s, second = a.s * delta + turned * a.c;
  const double third = a.s_before * a.gamma, length = std::hypot(first, gamma);
  if (going && (square < 0 || length == 0)) broken = true;
  going = going && !broken;
  const double shrunk = inverse(length), c = first * shrunk, s = gamma * shrunk;
  Turned out{.shrunk = shrunk,
             .third = third,
             .second = second,
             .step = going ? c * a.eta : 0,
             .normed = inverse(gamma),
             .kept = going ? s * s : 1,
             .share = going && gamma > 0 ? a.eta * c / gamma : 0};
  a = {.gamma = gamma,
       .c = c,
       .c_before = a.c,
       .s = s,
       .s_before = a.s,
       .eta = going ? -s * a.eta : a.eta};
  return out;
}

Tensor minres_step(const Tensor& x, const Tensor& v, const Tensor& z,
                   const std::optional<Tensor>& y, const Tensor& w, const Tensor& w_before,
                   const std::optional<Tensor>& r, const Tensor& state, const Tensor& square,
                   const Tensor& delta, const Tensor& squares, const Tensor& active,
                   const Tensor& broken) {
  const VectorShape s = shape_of(x, "x");
  for (const Tensor* vector : {&v, &z, &w, &w_before}) check_alike(*vector, x, "v, z, w, w_before");
  if (y) check_alike(*y, x, "y");
  if (r) check_alike(*r, x, "r");
  double* const kept = state_of(state, s, sizeof(Column) / sizeof(double));
  const Scalars of_v(square, s, "square"), diagonal(delta, s, "delta");
  const double* const known = reals(squares, s, "squares");
  const bool* const goes = mask(active, s, "active");
  bool* const stopped = changed_mask(broken, s, "broken");
  Tensor out = empty(x, {s.items, s.n}, ScalarType::Double);
  double* const sums = mutable_data<double>(out);
  dispatch_solvable(x.scalar_type(), [&]<class scalar_t>() {
    Factors<5, scalar_t> factors(s);
    Factors<2, scalar_t> of_r(s);
    for (int64_t i = 0; i < s.columns(); ++i) {
      bool going = goes[i];
      Column column = load<Column>(kept + i, s.columns());
      const Turned t = turn(column, of_v.real(i), diagonal.real(i), going, stopped[i]);
      store(column, kept + i, s.columns());
      factors.set(i, t.shrunk, t.third, t.second, t.step, t.normed);
      of_r.set(i, t.kept, t.share);
      sums[i] = going ? column.eta * column.eta : known[i];
    }
    scalar_t *const moved = mutable_data<scalar_t>(x), *const basis = mutable_data<scalar_t>(v);
    if (r) {
      scalar_t* const residual = mutable_data<scalar_t>(*r);
      sum_chunks(s, s.n, sums, [&](int64_t start, int64_t count, int64_t item, double* sum) {
        residual_chunk(residual + start, basis + start, of_r.of(item), count, s.n, sum);
      });
    }
    scalar_t *const direction = mutable_data<scalar_t>(z), *last = mutable_data<scalar_t>(w_before);
    const scalar_t *const next = data<scalar_t>(y), *const before = data<scalar_t>(w);
    for_chunks(s, [&](int64_t start, int64_t count, int64_t item, int64_t) {
      step_chunk(moved + start, basis + start, direction + start, next ? next + start : nullptr,
                 before + start, last + start, factors.of(item), count, s.n);
    });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) { m.impl("minres_step", SPGRAD_BOX(&minres_step)); }

}  // namespace spgrad
