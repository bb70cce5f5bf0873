// The inverse of a factorised matrix at the pattern of its factors, by supernodes.
#include <algorithm>
#include <tuple>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "solves/division.h"
#include "solves/dtypes.h"
#include "solves/small_products.h"

namespace spgrad {
namespace {

enum class Mirror { none, symmetric, hermitian };

template <class T>
SPGRAD_INLINE T mirrored(T value, bool) {
  return value;
}
template <class T>
SPGRAD_INLINE Complex<T> mirrored(Complex<T> value, bool conjugate) {
  return conjugate ? Complex<T>(value.re, -value.im) : value;
}

template <class index_t, class scalar_t>
struct Columns {
  const index_t* ptr;
  const index_t* idx;
  const scalar_t* val;
};

// Supernode s has the columns start[s] ... start[s + 1] - 1 and below them the rows
// rows[row_ptr[s]] ... rows[row_ptr[s + 1] - 1], sorted. With w its width and r its number of rows,
// z has from base[s] on: Z (w, w + r), the elements in its lines and in its columns and rows; and,
// unless Z is mirrored, a matrix (w, r), the transpose of the elements in its rows and columns.
template <class index_t, class scalar_t>
struct Panels {
  const index_t* start;
  const index_t* row_ptr;
  const index_t* rows;
  int64_t count;
  Mirror mirror;
  scalar_t* z;
  Array<int64_t> base;
  int64_t most_columns = 0, most_rows = 0;

  int64_t width(int64_t s) const { return start[s + 1] - start[s]; }
  int64_t below(int64_t s) const { return row_ptr[s + 1] - row_ptr[s]; }
  const index_t* rows_of(int64_t s) const { return rows + row_ptr[s]; }
  Rows<scalar_t> upper(int64_t s) const { return {z + base[s], width(s) + below(s)}; }
  Rows<scalar_t> lower(int64_t s) const {
    return {z + base[s] + width(s) * (width(s) + below(s)), below(s)};
  }

  // The number of elements of z.
  int64_t lay_out() {
    base = array<int64_t>(count + 1);
    base[0] = 0;
    for (int64_t s = 0; s < count; ++s) {
      const int64_t w = width(s), r = below(s);
      base[s + 1] = base[s] + w * (w + r * (mirror == Mirror::none ? 2 : 1));
      most_columns = std::max(most_columns, w);
      most_rows = std::max(most_rows, r);
    }
    return base[count];
  }
};

// Copies L, without its diagonal of ones, and U to the places where Z will be.
template <class index_t, class scalar_t>
void scatter(const Panels<index_t, scalar_t>& panels, const Columns<index_t, scalar_t>& l,
             const Columns<index_t, scalar_t>& u) {
  const int64_t m = panels.start[panels.count];
  std::fill(panels.z, panels.z + panels.base[panels.count], scalar_t{});
  const auto of = array<index_t>(m), next = zeros<index_t>(panels.count);
  const auto at = array<index_t>(m);
  for (int64_t s = 0; s < panels.count; ++s) {
    const int64_t a = panels.start[s], b = panels.start[s + 1], r = panels.below(s);
    const index_t* rows = panels.rows_of(s);
    for (int64_t j = a; j < b; ++j) of[j] = static_cast<index_t>(s);
    if (panels.mirror == Mirror::none) {
      for (int64_t q = 0; q < r; ++q) at[rows[q]] = static_cast<index_t>(q);
    }
    const Rows<scalar_t> upper = panels.upper(s), lower = panels.lower(s);
    for (int64_t j = a; j < b; ++j) {
      for (int64_t p = l.ptr[j]; p < l.ptr[j + 1]; ++p) {
        const int64_t i = l.idx[p];
        if (i <= j) continue;
        if (i < b) {
          upper[i - a][j - a] = l.val[p];
        } else if (panels.mirror == Mirror::none) {
          lower[j - a][at[i]] = l.val[p];
        }
      }
    }
  }
  for (int64_t c = 0; c < m; ++c) {
    for (int64_t p = u.ptr[c]; p < u.ptr[c + 1]; ++p) {
      const int64_t i = u.idx[p], s = of[i], a = panels.start[s], b = panels.start[s + 1];
      int64_t to = c - a;
      if (c >= b) {
        const index_t* rows = panels.rows_of(s);
        while (rows[next[s]] < c) ++next[s];
        to = b - a + next[s];
      }
      panels.upper(s)[i - a][to] = u.val[p];
    }
  }
}

// to (columns, rows) = from (rows, columns) transposed, by squares of a cache line.
template <class scalar_t, class F>
SPGRAD_INLINE void transpose(Rows<scalar_t> from, Rows<scalar_t> to, int64_t rows, int64_t columns,
                             const F& each) {
  constexpr int64_t kSide = 8;
  for (int64_t i = 0; i < rows; i += kSide) {
    const int64_t last = std::min(i + kSide, rows);
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t k = i; k < last; ++k) to[j][k] = each(from[k][j]);
    }
  }
}

// The memory in which one supernode is computed: matrices (w, r), and the last (w, w); rows are
// padded.
template <class scalar_t>
struct Blocks {
  Rows<scalar_t> n, m, beside, below, own;
};

template <class scalar_t>
struct Scratch {
  Array<scalar_t> memory, factors;

  Scratch(int64_t w, int64_t r)
      : memory(array<scalar_t>(4 * w * most_padded(r) + w * most_padded(w))),
        factors(array<scalar_t>(w)) {}

  // At least `padded` of any smaller size.
  static int64_t most_padded(int64_t size) { return padded<scalar_t>(size) + 64; }

  Blocks<scalar_t> blocks(int64_t w, int64_t r) const {
    const int64_t stride = padded<scalar_t>(r);
    const Rows<scalar_t> first{memory.get(), stride};
    const Rows<scalar_t> own{first[4 * w], padded<scalar_t>(w)};
    return {first, first.at(w, 0), first.at(2 * w, 0), first.at(3 * w, 0), own};
  }
};

// Z at the rows of one supernode, gathered from the supernodes after it; and its transpose, unless
// Z is mirrored.
template <class index_t, class scalar_t>
struct Gathered {
  Array<scalar_t> z, transposed;
  Array<int64_t> at;  // the position of a row among the rows of another supernode
  Rows<scalar_t> a, b;

  explicit Gathered(const Panels<index_t, scalar_t>& panels) {
    const int64_t most = std::max(panels.most_rows, panels.most_columns);
    const int64_t size = most * Scratch<scalar_t>::most_padded(most);
    z = zeros<scalar_t>(size);
    if (panels.mirror == Mirror::none) {
      transposed = zeros<scalar_t>(size);
    }
    at = array<int64_t>(most);
  }

  SPGRAD_INLINE static void take(const scalar_t* from, const int64_t* at, int64_t count,
                                 scalar_t* to) {
    if (at[count - 1] - at[0] == count - 1) {
      std::copy(from + at[0], from + at[0] + count, to);
    } else {
      for (int64_t q = 0; q < count; ++q) to[q] = from[at[q]];
    }
  }

  // The triangles above the diagonals of a = Z and b = Z^T, with the diagonal.
  SPGRAD_INLINE void fill(const Panels<index_t, scalar_t>& panels, const index_t* of, int64_t s) {
    const int64_t r = panels.below(s), stride = padded<scalar_t>(r);
    const index_t* rows = panels.rows_of(s);
    const bool mirror = panels.mirror != Mirror::none;
    a = {z.get(), stride};
    b = {transposed.get(), stride};
    for (int64_t first = 0, last; first < r; first = last) {
      const int64_t k = of[rows[first]], start = panels.start[k], w = panels.width(k);
      for (last = first; last < r && rows[last] < panels.start[k + 1];) ++last;
      const index_t *from = panels.rows_of(k), *end = from + panels.below(k), *next = from;
      for (int64_t q = last; q < r; ++q) {
        if (*next != rows[q]) next = std::lower_bound(next, end, rows[q]);
        at[q] = next - from;
        next += next + 1 < end;
      }
      for (int64_t p = first; p < last; ++p) {
        const int64_t own = rows[p] - start;
        const scalar_t* line = panels.upper(k)[own];
        for (int64_t q = p; q < last; ++q) a[p][q] = line[rows[q] - start];
        if (!mirror) {
          for (int64_t q = p; q < last; ++q) b[p][q] = panels.upper(k)[rows[q] - start][own];
        }
        if (last == r) continue;
        take(line + w, at.get() + last, r - last, a[p] + last);
        if (!mirror) take(panels.lower(k)[own], at.get() + last, r - last, b[p] + last);
      }
    }
    const bool conjugate = panels.mirror == Mirror::hermitian;
    reflect(mirror ? a : b, a, r, conjugate);
    if (!mirror) reflect(a, b, r, false);
  }

  // Copies the triangle of `from` above the diagonal to the triangle of `to` below the diagonal.
  SPGRAD_INLINE static void reflect(Rows<scalar_t> from, Rows<scalar_t> to, int64_t r,
                                    bool conjugate) {
    constexpr int64_t kSide = 8;
    for (int64_t i = 0; i < r; i += kSide) {
      const int64_t last = std::min(i + kSide, r);
      for (int64_t j = i + 1; j < r; ++j) {
        const int64_t stop = std::min(last, j);
        for (int64_t k = i; k < stop; ++k) to[j][k] = mirrored(from[k][j], conjugate);
      }
    }
  }
};

template <class scalar_t>
SPGRAD_INLINE void clear(scalar_t* from, int64_t count) {
  std::fill(from, from + count, scalar_t{});
}

// For a supernode J with rows R: writes U_JJ^-1 L_JJ^-1 to own, N = U_JJ^-1 U_JR to n, and, unless
// Z is mirrored, the transpose of M = L_RJ L_JJ^-1 to m.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void solve_blocks(const Panels<index_t, scalar_t>& panels,
                                const Blocks<scalar_t>& blocks, scalar_t* factors, int64_t s) {
  const auto& [n, m, beside, below, own] = blocks;
  const int64_t w = panels.width(s), r = panels.below(s);
  const Rows<scalar_t> upper = panels.upper(s), lower = panels.lower(s);
  for (int64_t j = 0; j < w; ++j) {  // L_JJ^-1
    clear(own[j], own.stride);
    own[j][j] = scalar_t(1);
    subtract_product<kBytes>(upper.at(j, 0), own, own.at(j, 0), 1, j, j);
  }
  for (int64_t j = w - 1; j >= 0; --j) {
    const scalar_t pivot = divide(scalar_t(1), upper[j][j]);
    const int64_t later = w - 1 - j;
    const Rows<scalar_t> line = upper.at(j, j + 1);
    subtract_product<kBytes>(line, own.at(j + 1, 0), own.at(j, 0), 1, later, w);
    for (int64_t k = 0; k < w; ++k) own[j][k] = own[j][k] * pivot;
    std::copy(upper[j] + w, upper[j] + w + r, n[j]);
    clear(n[j] + r, n.stride - r);
    subtract_product<kBytes>(line, n.at(j + 1, 0), n.at(j, 0), 1, later, r);
    for (int64_t k = 0; k < r; ++k) n[j][k] = n[j][k] * pivot;
    if (panels.mirror != Mirror::none) continue;
    std::copy(lower[j], lower[j] + r, m[j]);
    clear(m[j] + r, m.stride - r);
    for (int64_t k = 0; k < later; ++k) factors[k] = upper[j + 1 + k][j];
    subtract_product<kBytes>(Rows<scalar_t>{factors, 0}, m.at(j + 1, 0), m.at(j, 0), 1, later, r);
  }
}

// One supernode; those after it are done: Z_RJ = -Z_RR M, Z_JR = -N Z_RR and
// Z_JJ = U_JJ^-1 L_JJ^-1 - N Z_RJ. The transpose of Z_RJ is stored.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void invert_one(const Panels<index_t, scalar_t>& panels, const index_t* of,
                              Gathered<index_t, scalar_t>& gathered,
                              const Scratch<scalar_t>& scratch, int64_t s) {
  const int64_t w = panels.width(s), r = panels.below(s);
  const bool mirror = panels.mirror != Mirror::none;
  const bool conjugate = panels.mirror == Mirror::hermitian;
  const Blocks<scalar_t> blocks = scratch.blocks(w, r);
  const auto& [n, m, beside, below, own] = blocks;
  solve_blocks<kBytes>(panels, blocks, scratch.factors.get(), s);
  if (r > 0) {
    gathered.fill(panels, of, s);
    clear(beside[0], w * beside.stride);
    subtract_product<kBytes>(n, gathered.a, beside, w, r, r);
    if (!mirror) {
      clear(below[0], w * below.stride);
      subtract_product<kBytes>(m, gathered.b, below, w, r, r);
    }
    const Rows<scalar_t> columns{gathered.z.get(), own.stride};  // Z_RJ
    transpose(mirror ? beside : below, columns, w, r,
              [&](scalar_t value) { return mirrored(value, conjugate); });
    subtract_product<kBytes>(n, columns, own, w, r, w);
  }
  const Rows<scalar_t> upper = panels.upper(s), lower = panels.lower(s);
  for (int64_t j = 0; j < w; ++j) {
    std::copy(own[j], own[j] + w, upper[j]);
    if (r == 0) continue;
    std::copy(beside[j], beside[j] + r, upper[j] + w);
    if (!mirror) std::copy(below[j], below[j] + r, lower[j]);
  }
}

// Takahashi, Fagan and Chen (1973). Erisman and Tinney (1975) say which elements of Z are needed,
// and Lin, Yang, Meza, Lu, Ying and E (2011) compute them by supernodes. O(sum over supernodes of w
// r^2 + r^2) time; memory for Z at the rows of one supernode, and O(m). One thread.
template <class index_t, class scalar_t>
void invert(const Panels<index_t, scalar_t>& panels) {
  const auto of = array<index_t>(panels.start[panels.count]);
  for (int64_t s = 0; s < panels.count; ++s) {
    std::fill(of.get() + panels.start[s], of.get() + panels.start[s + 1], static_cast<index_t>(s));
  }
  Gathered<index_t, scalar_t> gathered(panels);
  const Scratch<scalar_t> scratch(panels.most_columns, panels.most_rows);
  with_vectors([&]<int kBytes>() {
    for (int64_t s = panels.count - 1; s >= 0; --s) {
      invert_one<kBytes>(panels, of.get(), gathered, scratch, s);
    }
  });
}

Tensor supernodal_inverse(const Tensor& start, const Tensor& row_ptr, const Tensor& rows,
                          const Tensor& l_ptr, const Tensor& l_idx, const Tensor& l_val,
                          const Tensor& u_ptr, const Tensor& u_idx, const Tensor& u_val,
                          int64_t mirror) {
  check_view(row_ptr, rows, std::nullopt);
  check_tensor(start, 1, row_ptr.scalar_type(), "start");
  check_size(start, 0, row_ptr.size(0), "start");
  check_view(l_ptr, l_idx, std::nullopt);
  check_view(u_ptr, u_idx, std::nullopt);
  check_tensor(l_ptr, 1, row_ptr.scalar_type(), "l_ptr");
  check_tensor(u_ptr, 1, row_ptr.scalar_type(), "u_ptr");
  check_size(u_ptr, 0, l_ptr.size(0), "u_ptr");
  check_tensor(l_val, 1, l_val.scalar_type(), "l_val");
  check_tensor(u_val, 1, l_val.scalar_type(), "u_val");
  check_size(l_val, 0, l_idx.size(0), "l_val");
  check_size(u_val, 0, u_idx.size(0), "u_val");
  STD_TORCH_CHECK(mirror >= 0 && mirror <= 2, "spgrad: `mirror` is ", mirror, ", not 0, 1 or 2.");
  Tensor z;
  dispatch_index(start.scalar_type(), [&]<class index_t>() {
    dispatch_solvable(l_val.scalar_type(), [&]<class scalar_t>() {
      Panels<index_t, scalar_t> panels{.start = data<index_t>(start),
                                       .row_ptr = data<index_t>(row_ptr),
                                       .rows = data<index_t>(rows),
                                       .count = start.size(0) - 1,
                                       .mirror = static_cast<Mirror>(mirror),
                                       .z = nullptr,
                                       .base = nullptr};
      z = empty(l_val, {panels.lay_out()});
      panels.z = mutable_data<scalar_t>(z);
      scatter(panels, {data<index_t>(l_ptr), data<index_t>(l_idx), data<scalar_t>(l_val)},
              {data<index_t>(u_ptr), data<index_t>(u_idx), data<scalar_t>(u_val)});
      invert(panels);
    });
  });
  return z;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("supernodal_inverse", SPGRAD_BOX(&supernodal_inverse));
}

}  // namespace spgrad
