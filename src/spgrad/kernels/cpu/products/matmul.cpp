// The matmul family: spmm, its transpose (spmm on the column view) and sddmm are each other's
// derivatives. The contracts and kernels are in spmm.h, sddmm.h and one_pass/spmm_sddmm.h, the host
// functions in this file.
#include "products/rows/matmul.h"

#include <algorithm>
#include <tuple>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/split_rows.h"
#include "common/threads.h"
#include "products/one_pass/spmm_sddmm.h"
#include "products/sddmm.h"
#include "products/spmm.h"
#include "reading/order.h"
#include "reading/traffic.h"

namespace spgrad {

template <class index_t, class scalar_t>
void spmm_lines(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last, int64_t column) {
  if constexpr (kHasFew<index_t, scalar_t>) {
    if (is_for_few(a)) return spmm_few(a, first, last);
  }
  with_vectors([&]<int kBytes>() { spmm_rows<kBytes>(a, first, last, column); });
}
template <class index_t, class scalar_t>
void sddmm_lines(const Sddmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  with_vectors([&]<int kBytes>() { sddmm_rows<kBytes>(a, first, last); });
}

template void spmm_lines(const Spmm<int32_t, float>&, int64_t, int64_t, int64_t);
template void spmm_lines(const Spmm<int32_t, double>&, int64_t, int64_t, int64_t);
template void spmm_lines(const Spmm<int64_t, float>&, int64_t, int64_t, int64_t);
template void spmm_lines(const Spmm<int64_t, double>&, int64_t, int64_t, int64_t);
template void sddmm_lines(const Sddmm<int32_t, float>&, int64_t, int64_t);
template void sddmm_lines(const Sddmm<int32_t, double>&, int64_t, int64_t);
template void sddmm_lines(const Sddmm<int64_t, float>&, int64_t, int64_t);
template void sddmm_lines(const Sddmm<int64_t, double>&, int64_t, int64_t);

namespace {

// Sums of products of integers wrap, and their low bits are the same for signed and unsigned
// elements.
ScalarType without_sign(ScalarType dtype) {
  return dtype == ScalarType::Char ? ScalarType::Byte : dtype;
}

// Whether rows may be cut. Rows of 16-bit floats may not: the sums of the pieces would be rounded
// before they are added.
template <class scalar_t>
inline constexpr bool kSplits = std::is_same_v<scalar_t, accumulate_t<scalar_t>>;

// The product of a part of the lines. It writes its result to y, or, for pieces of a row, to
// `pieces`.
template <class index_t, class scalar_t>
Spmm<index_t, scalar_t> of_part(Spmm<index_t, scalar_t> a,
                                const typename SplitRows<index_t>::Part& part, scalar_t* pieces) {
  a.ptr = part.starts;
  if (part.row < 0) return a;
  a.y = pieces + part.slot * a.n;
  a.traffic.streamed = false;
  return a;
}

template <class index_t, class scalar_t>
Sddmm<index_t, scalar_t> of_part(Sddmm<index_t, scalar_t> a,
                                 const typename SplitRows<index_t>::Part& part) {
  a.ptr = part.starts;
  if (part.row < 0) return a;
  a.g += part.row * a.n;
  a.step = 0;
  return a;
}

// Calls f(product, first, last) on ranges of lines, in parallel. f multiplies by `columns` columns
// of x.
template <class index_t, class scalar_t, class F>
void for_parts(const Spmm<index_t, scalar_t>& a, const SplitRows<index_t>& split, scalar_t* pieces,
               int64_t columns, const F& f) {
  split.parallel(columns, [&](const auto& part) {
    f(of_part(a, part, pieces), part.first, part.last);
    if (a.traffic.streamed) finish_streams();
  });
}

// Multiplies by two tiles of x at a time, then by the remaining columns, which are read from x
// itself.
template <class index_t, class scalar_t>
void spmm_tiled(const Spmm<index_t, scalar_t>& a, const SplitRows<index_t>& split, scalar_t* pieces,
                const Tensor& x) {
  constexpr int64_t kWidth = kTileBytes / sizeof(scalar_t);
  const int64_t k = x.size(0);
  const Tensor copied = empty(x, {kTilesAtOnce, k, kWidth});
  scalar_t* const tiles = mutable_data<scalar_t>(copied);
  int64_t column = 0;
  while (a.n - column >= kWidth) {
    const int64_t count = std::min(kTilesAtOnce, (a.n - column) / kWidth);
    parallel_entries(k, count * kWidth, [&](int64_t first, int64_t last) {
      copy_tiles(a.x, a.n, column, k, count, first, last, tiles);
    });
    for_parts(a, split, pieces, count * kWidth, [&](const auto& part, int64_t first, int64_t last) {
      with_vectors([&]<int kBytes>() {
        for (int64_t tile = 0; tile < count; ++tile) {
          spmm_tile<kBytes>(part, tiles + tile * k * kWidth, first, last, column + tile * kWidth);
        }
      });
    });
    column += count * kWidth;
  }
  if (column == a.n) return;
  for_parts(a, split, pieces, a.n - column, [&](const auto& part, int64_t first, int64_t last) {
    spmm_lines(part, first, last, column);
  });
}

template <class index_t, class scalar_t>
void spmm_split(const Spmm<index_t, scalar_t>& a, const SplitRows<index_t>& split, scalar_t* pieces,
                const Tensor& x) {
  if constexpr (std::is_floating_point_v<scalar_t>) {
    if (a.traffic.tiled) return spmm_tiled(a, split, pieces, x);
  }
  for_parts(a, split, pieces, a.n,
            [](const auto& part, int64_t first, int64_t last) { spmm_lines(part, first, last); });
}

void check_values(const Tensor& out, const Tensor& idx, const Tensor& x) {
  check_tensor(out, 1, x.scalar_type(), "out");
  check_size(out, 0, idx.size(0), "out");
}

template <class index_t, class scalar_t>
Spmm<index_t, scalar_t> spmm_of(const Tensor& ptr, const Tensor& idx,
                                const std::optional<Tensor>& perm, const Tensor& val,
                                const Tensor& x, const Tensor& y, bool sums_only = true) {
  const bool may_tile = sums_only && std::is_floating_point_v<scalar_t> && !perm.has_value();
  const int64_t m = ptr.size(0) - 1;
  Traffic traffic =
      choose_traffic(idx, x, {.sums_only = sums_only, .may_tile = may_tile, .lines = m});
  traffic.streamed = worth_streaming(y);
  return {.ptr = data<index_t>(ptr),
          .idx = data<index_t>(idx),
          .perm = data<index_t>(perm),
          .val = data<scalar_t>(val),
          .x = data<scalar_t>(x),
          .y = mutable_data<scalar_t>(y),
          .n = num_columns(x),
          .nse = idx.size(0),
          .traffic = traffic};
}

template <class index_t, class scalar_t>
Sddmm<index_t, scalar_t> sddmm_of(const Tensor& ptr, const Tensor& idx,
                                  const std::optional<Tensor>& perm, const Tensor& g,
                                  const Tensor& x, const Tensor& out) {
  return {.ptr = data<index_t>(ptr),
          .idx = data<index_t>(idx),
          .perm = data<index_t>(perm),
          .g = data<scalar_t>(g),
          .x = data<scalar_t>(x),
          .out = mutable_data<scalar_t>(out),
          .n = x.size(1),
          .nse = idx.size(0),
          .ahead = choose_traffic(idx, x, {}).ahead};
}

// Whether the kernels for few columns accept a product. They read values in storage order.
bool takes_few(const Tensor& ptr, const Tensor& x) {
  const ScalarType dtype = x.scalar_type();
  const bool real = dtype == ScalarType::Float || dtype == ScalarType::Double;
  const int64_t n = num_columns(x), row = n * static_cast<int64_t>(x.element_size());
  return real && ptr.scalar_type() == ScalarType::Int && are_few(n, row, vector_bytes());
}

// Both products in one pass over the view. `far_apart`: perm scatters the values over more memory
// than the cache holds.
template <class index_t, class scalar_t>
void spmm_sddmm_split(const SpmmSddmm<index_t, scalar_t>& both, int64_t m, bool far_apart) {
  const int64_t n = both.sums.n;
  const SplitRows<index_t> split(both.sums.ptr, m, n);
  const auto joined = array<scalar_t>(split.slots() * n);
  scalar_t* const pieces = joined.get();
  split.parallel(2 * n, [&](const auto& part) {
    const SpmmSddmm<index_t, scalar_t> lines{.sums = of_part(both.sums, part, pieces),
                                             .dots = of_part(both.dots, part)};
    with_vectors([&]<int kBytes>() {
      far_apart ? spmm_sddmm_batches<kBytes>(lines, part.first, part.last)
                : spmm_sddmm_rows<kBytes>(lines, part.first, part.last);
    });
    if (both.sums.traffic.streamed) finish_streams();
  });
  split.join(pieces, n, both.sums.y);
}

void sddmm_into(const Tensor& out, const Tensor& ptr, const Tensor& idx,
                const std::optional<Tensor>& perm, const Tensor& g, const Tensor& x) {
  check_sddmm(ptr, idx, perm, g, x);
  check_values(out, idx, x);
  dispatch(ptr.scalar_type(), without_sign(x.scalar_type()), [&]<class index_t, class scalar_t>() {
    const Tensor in_lines = with_rows_in_lines(x, idx.size(0));
    const auto a = sddmm_of<index_t, scalar_t>(ptr, idx, perm, g, in_lines, out);
    const SplitRows<index_t> split(a.ptr, ptr.size(0) - 1, a.n);
    split.parallel(x.size(1),
                   [&](const auto& part) { sddmm_lines(of_part(a, part), part.first, part.last); });
  });
}

}  // namespace

Tensor spmm(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
            const Tensor& val, const Tensor& x) {
  check_spmm(ptr, idx, perm, val, x, 1, /*may_be_vector=*/true);
  const bool reordered = perm.has_value() && (are_far(val) || takes_few(ptr, x));
  if (reordered) return spmm(ptr, idx, std::nullopt, in_view_order(*perm, val), x);
  const int64_t m = ptr.size(0) - 1, n = num_columns(x);
  Tensor y = empty_columns(x, m);
  dispatch(ptr.scalar_type(), without_sign(x.scalar_type()), [&]<class index_t, class scalar_t>() {
    auto a = spmm_of<index_t, scalar_t>(ptr, idx, perm, val, x, y);
    const Tensor in_lines = a.traffic.tiled || x.dim() == 1 ? x : with_rows_in_lines(x, a.nse);
    a.x = data<scalar_t>(in_lines);
    choose_few_way(a, 0, m);
    if constexpr (kSplits<scalar_t>) {
      const SplitRows<index_t> split(a.ptr, m, n);
      const auto joined = array<scalar_t>(split.slots() * n);
      scalar_t* const pieces = joined.get();
      spmm_split(a, split, pieces, x);
      split.join(pieces, n, a.y);
    } else {
      parallel_rows(a.ptr, m, n, [&](int64_t first, int64_t last) {
        spmm_lines(a, first, last);
        if (a.traffic.streamed) finish_streams();
      });
    }
  });
  return y;
}

Tensor sddmm(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
             const Tensor& g, const Tensor& x) {
  check_sddmm(ptr, idx, perm, g, x);
  Tensor out = empty(x, {idx.size(0)});
  sddmm_into(out, ptr, idx, perm, g, x);
  return out;
}

namespace {

// Whether the columns fill whole vectors of float32 or float64. Then both products take one pass,
// otherwise two. 16-bit floats would be rounded between blocks of columns.
bool fills_vectors(const Tensor& x) {
  const ScalarType dtype = x.scalar_type();
  const bool real = dtype == ScalarType::Float || dtype == ScalarType::Double;
  const int64_t n = x.dim() == 2 ? x.size(1) : 0;
  return real && n > 0 && n % (vector_bytes() / static_cast<int64_t>(x.element_size())) == 0;
}

Tensor spmm_sddmm_into(const Tensor& out, const Tensor& ptr, const Tensor& idx,
                       const std::optional<Tensor>& perm, const Tensor& val, const Tensor& g,
                       const Tensor& x) {
  if (!fills_vectors(x)) {
    Tensor y = spmm(ptr, idx, perm, val, x);
    sddmm_into(out, ptr, idx, perm, g, x);
    return y;
  }
  check_spmm(ptr, idx, perm, val, x);
  check_sddmm(ptr, idx, perm, g, x);
  check_values(out, idx, x);
  const int64_t m = ptr.size(0) - 1;
  Tensor y = empty(x, {m, x.size(1)});
  dispatch(ptr.scalar_type(), x.scalar_type(), [&]<class index_t, class scalar_t>() {
    if constexpr (std::is_floating_point_v<scalar_t>) {
      const SpmmSddmm<index_t, scalar_t> both{
          .sums = spmm_of<index_t, scalar_t>(ptr, idx, perm, val, x, y, /*sums_only=*/false),
          .dots = sddmm_of<index_t, scalar_t>(ptr, idx, perm, g, x, out),
      };
      const bool far_apart = perm.has_value() && are_far(val);
      spmm_sddmm_split(both, m, far_apart);
    }
  });
  return y;
}

}  // namespace

std::tuple<Tensor, Tensor> spmm_sddmm(const Tensor& ptr, const Tensor& idx,
                                      const std::optional<Tensor>& perm, const Tensor& val,
                                      const Tensor& g, const Tensor& x) {
  if (!fills_vectors(x)) {
    return {spmm(ptr, idx, perm, val, x), sddmm(ptr, idx, perm, g, x)};
  }
  check_sddmm(ptr, idx, perm, g, x);
  Tensor out = empty(x, {idx.size(0)});
  Tensor y = spmm_sddmm_into(out, ptr, idx, perm, val, g, x);
  return {y, out};
}

namespace {

Tensor shares(const Tensor& ptr, int64_t workers) {
  check_view(ptr, ptr, std::nullopt);
  STD_TORCH_CHECK(workers >= 1, "spgrad: `workers` is ", workers, "; 1 or more is accepted.");
  Tensor out = empty(ptr, {2, workers}, ScalarType::Long);
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    const SplitRows<index_t> split(data<index_t>(ptr), ptr.size(0) - 1);
    split.measure(workers, mutable_data<int64_t>(out));
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("shares", SPGRAD_BOX(&shares));
  m.impl("spmm", SPGRAD_BOX(&spmm));
  m.impl("sddmm", SPGRAD_BOX(&sddmm));
  m.impl("sddmm_into", SPGRAD_BOX(&sddmm_into));
  m.impl("spmm_sddmm", SPGRAD_BOX(&spmm_sddmm));
  m.impl("spmm_sddmm_into", SPGRAD_BOX(&spmm_sddmm_into));
}

}  // namespace spgrad
