// The vectors and scalars of a step of GMRES.
#include "solves/krylov/vectors.h"

namespace spgrad {
namespace {

// Elements that are brought up to date, and multiplied by all rows of the basis, while the caches
// have them.
constexpr int64_t kTile = 2048;

// Orthonormal vectors as rows of (count, rows, m), of which the first k are used.
template <class scalar_t>
struct Basis {
  const scalar_t* vectors;
  int64_t rows, m, k;
  const scalar_t* at(int64_t item, int64_t row, int64_t from) const {
    return vectors + (item * rows + row) * m + from;
  }
};

// w -= sum_r by_r v_r for R rows v_r, which are `stride` apart.
template <int R, class scalar_t>
SPGRAD_CLONES void subtract_few(scalar_t* __restrict w, const scalar_t* __restrict v,
                                int64_t stride, const scalar_t* by, int64_t count) {
  scalar_t factors[R];
  for (int r = 0; r < R; ++r) factors[r] = by[r];
  for (int64_t i = 0; i < count; ++i) {
    scalar_t now = w[i];
    for (int r = 0; r < R; ++r) now = now - v[r * stride + i] * factors[r];
    w[i] = now;
  }
}

// w -= sum_r by_r v_r for the rows of an item, from this element on.
template <class scalar_t>
void subtract_rows(scalar_t* w, const Basis<scalar_t>& basis, int64_t item, int64_t from,
                   const scalar_t* by, int64_t count) {
  int64_t row = 0;
  for (; row + 4 <= basis.k; row += 4) {
    subtract_few<4>(w, basis.at(item, row, from), basis.m, by + row, count);
  }
  for (; row < basis.k; ++row) {
    subtract_few<1>(w, basis.at(item, row, from), basis.m, by + row, count);
  }
}

template <class scalar_t>
SPGRAD_CLONES wide_t<scalar_t> dot_row(const scalar_t* v, const scalar_t* w, int64_t count) {
  const scalar_t* const none = nullptr;
  wide_t<scalar_t> sum;
  sum_elements<0>(count, 1, none, &sum,
                  [&](int64_t i, const auto&) { return wide_product(v[i], w[i]); });
  return sum;
}

template <class scalar_t>
SPGRAD_CLONES void scale_row(scalar_t* __restrict out, const scalar_t* __restrict w, scalar_t by,
                             int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = w[i] * by;
}

VectorShape shape_of_rows(const Tensor& w) {
  check_tensor(w, 2, w.scalar_type(), "w");
  return {.items = w.size(0), .m = w.size(1), .n = 1};
}

template <class scalar_t>
Basis<scalar_t> basis_of(const Tensor& V, const Tensor& w, int64_t k) {
  check_tensor(V, 3, w.scalar_type(), "V");
  check_size(V, 0, w.size(0), "V");
  check_size(V, 2, w.size(1), "V");
  STD_TORCH_CHECK(0 <= k && k <= V.size(1), "spgrad: `k` is ", k, ", and V has ", V.size(1),
                  " rows.");
  return {.vectors = data<scalar_t>(V), .rows = V.size(1), .m = V.size(2), .k = k};
}

// Scalars (count, k) of 64 bits.
template <class wide>
const wide* wides_of(const Tensor& t, const VectorShape& s, int64_t k, const char* name) {
  constexpr bool real = std::is_same_v<wide, double>;
  check_tensor(t, 2, real ? ScalarType::Double : ScalarType::ComplexDouble, name);
  check_size(t, 0, s.items, name);
  check_size(t, 1, k, name);
  return data<wide>(t);
}

// The scalars h (count, k) in the dtype of the vectors.
template <class scalar_t>
List<scalar_t> parts_of(const Tensor& h, const VectorShape& s, int64_t k) {
  const auto* const all = wides_of<wide_t<scalar_t>>(h, s, k, "h");
  List<scalar_t> out(s.items * k);
  for (int64_t i = 0; i < s.items * k; ++i) out[i] = rounded<scalar_t>(all[i]);
  return out;
}

Tensor gmres_project(const Tensor& w, const Tensor& V, const std::optional<Tensor>& h, int64_t k) {
  const VectorShape s = shape_of_rows(w);
  const ScalarType dtype = w.scalar_type();
  const bool real = dtype == ScalarType::Float || dtype == ScalarType::Double;
  Tensor out = empty(w, {s.items, k}, real ? ScalarType::Double : ScalarType::ComplexDouble);
  dispatch_solvable(dtype, [&]<class scalar_t>() {
    using wide = wide_t<scalar_t>;
    const Basis<scalar_t> basis = basis_of<scalar_t>(V, w, k);
    const List<scalar_t> parts = h ? parts_of<scalar_t>(*h, s, k) : List<scalar_t>();
    scalar_t* const vectors = mutable_data<scalar_t>(w);
    sum_chunks(
        s, k, mutable_data<wide>(out), [&](int64_t start, int64_t count, int64_t item, wide* sums) {
          std::fill_n(sums, k, wide{});
          for (int64_t at = start; at < start + count; at += kTile) {
            const int64_t length = std::min(kTile, start + count - at);
            const int64_t from = at - item * s.m;
            if (h) {
              subtract_rows(vectors + at, basis, item, from, parts.data() + item * k, length);
            }
            for (int64_t row = 0; row < k; ++row) {
              sums[row] += dot_row(basis.at(item, row, from), vectors + at, length);
            }
          }
        });
  });
  return out;
}

Tensor gmres_subtract(const Tensor& w, const Tensor& V, const Tensor& h, int64_t k) {
  const VectorShape s = shape_of_rows(w);
  Tensor out = empty(w, {s.items, 1}, ScalarType::Double);
  dispatch_solvable(w.scalar_type(), [&]<class scalar_t>() {
    const Basis<scalar_t> basis = basis_of<scalar_t>(V, w, k);
    const List<scalar_t> parts = parts_of<scalar_t>(h, s, k);
    scalar_t* const vectors = mutable_data<scalar_t>(w);
    sum_chunks(s, 1, mutable_data<double>(out),
               [&](int64_t start, int64_t count, int64_t item, double* sum) {
                 *sum = 0;
                 for (int64_t at = start; at < start + count; at += kTile) {
                   const int64_t length = std::min(kTile, start + count - at);
                   subtract_rows(vectors + at, basis, item, at - item * s.m,
                                 parts.data() + item * k, length);
                   *sum += rounded<double>(dot_row(vectors + at, vectors + at, length));
                 }
               });
  });
  return out;
}

// The Hessenberg matrix, the null vector and the residual of one column, all with one more step.
// h has k + 1 numbers. Returns what w is to be multiplied by.
template <class scalar_t, class wide = wide_t<scalar_t>>
double extend(scalar_t* H, int64_t restart, wide* null, const wide* h, double size, int64_t k,
              double& length, bool& none) {
  double squares = 0;
  wide last{};
  for (int64_t i = 0; i <= k; ++i) {
    squares += wide_square(h[i]);
    last += null[i] * h[i];
    H[i * restart + k] = rounded<scalar_t>(h[i]);
  }
  // a vector of rounding errors is no new direction: the space is exhausted
  none = size <= std::sqrt(squares) * eps_of(scalar_t{}) * 10;
  const double shrunk = none ? 0 : 1 / size;
  H[(k + 1) * restart + k] = rounded<scalar_t>(none ? 0 : size);
  null[k + 1] = last * wide(-shrunk);
  length += wide_square(null[k + 1]);
  return shrunk;
}

Tensor gmres_extend(const Tensor& V, const Tensor& H, const Tensor& null, const Tensor& lengths,
                    const Tensor& exhausted, const Tensor& w, const Tensor& h, const Tensor& again,
                    const Tensor& of_w, const Tensor& beta, const Tensor& active, int64_t k) {
  const VectorShape s = shape_of_rows(w);
  check_tensor(lengths, 2, ScalarType::Double, "lengths");
  const VectorShape columns{.items = lengths.size(0), .m = 0, .n = lengths.size(1)};
  STD_TORCH_CHECK(columns.columns() == s.items, "spgrad: `lengths` has ", columns.columns(),
                  " columns, and `w` has ", s.items, ".");
  const int64_t rows = V.dim() == 3 ? V.size(1) : 0;
  STD_TORCH_CHECK(0 <= k && k + 1 < rows, "spgrad: `k` is ", k, ", and V has ", rows, " rows.");
  check_tensor(H, 3, w.scalar_type(), "H");
  check_size(H, 0, s.items, "H");
  check_size(H, 1, rows, "H");
  check_size(H, 2, rows - 1, "H");
  double* const length = mutable_data<double>(lengths);
  bool* const ended = changed_mask(exhausted, columns, "exhausted");
  const double* const right = reals(beta, columns, "beta");
  const bool* const going = mask(active, columns, "active");
  const double* const square = wides_of<double>(of_w, s, 1, "of_w");
  Tensor out = empty(lengths, {columns.items, columns.n}, ScalarType::Double);
  double* const squares = mutable_data<double>(out);
  dispatch_solvable(w.scalar_type(), [&]<class scalar_t>() {
    using wide = wide_t<scalar_t>;
    const Basis<scalar_t> basis = basis_of<scalar_t>(V, w, k + 1);
    wides_of<wide>(null, s, rows, "null");
    const wide* const first = wides_of<wide>(h, s, k + 1, "h");
    const wide* const second = wides_of<wide>(again, s, k + 1, "again");
    List<wide> sum(k + 1);
    List<scalar_t> factors(s.items);
    for (int64_t i = 0; i < s.items; ++i) {
      for (int64_t j = 0; j <= k; ++j) sum[j] = first[i * (k + 1) + j] + second[i * (k + 1) + j];
      bool none = false;
      factors[i] = rounded<scalar_t>(extend(mutable_data<scalar_t>(H) + i * rows * (rows - 1),
                                            rows - 1, mutable_data<wide>(null) + i * rows,
                                            sum.data(), std::sqrt(square[i]), k, length[i], none));
      squares[i] = right[i] / length[i];
      ended[i] = ended[i] || (going[i] && none);
    }
    scalar_t* const vectors = mutable_data<scalar_t>(V);
    const scalar_t* const next = data<scalar_t>(w);
    for_chunks(s, [&](int64_t start, int64_t count, int64_t item, int64_t) {
      const int64_t at = basis.at(item, k + 1, start - item * s.m) - basis.vectors;
      scale_row(vectors + at, next + start, factors[item], count);
    });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("gmres_project", SPGRAD_BOX(&gmres_project));
  m.impl("gmres_subtract", SPGRAD_BOX(&gmres_subtract));
  m.impl("gmres_extend", SPGRAD_BOX(&gmres_extend));
}

}  // namespace spgrad
