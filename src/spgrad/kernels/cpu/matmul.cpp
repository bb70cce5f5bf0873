// The matmul family: spmm, its transpose (spmm on the column view) and sddmm are each other's
// derivatives. Contracts and kernels are in spmm.h, sddmm.h and spmm_sddmm.h; here are the
// host functions.
#include "sddmm.h"
#include "spmm.h"
#include "spmm_sddmm.h"

namespace spgrad {

template <class index_t, class scalar_t>
void spmm_lines(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last, int64_t column) {
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

// Sums of products wrap: their low bits are the same for signed and unsigned elements.
ScalarType without_sign(ScalarType dtype) {
  return dtype == ScalarType::Char ? ScalarType::Byte : dtype;
}

// Two tiles of x at a time, then what is left of the columns from x itself.
template <class index_t, class scalar_t>
void spmm_tiled(Spmm<index_t, scalar_t> a, int64_t m, const Tensor& x) {
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
    Spmm<index_t, scalar_t> part = a;
    part.fetched = bytes_ahead(k * kTileBytes);
    parallel_rows(a.ptr, m, count * kWidth, [&](int64_t first, int64_t last) {
      with_vectors([&]<int kBytes>() {
        for (int64_t t = 0; t < count; ++t) {
          spmm_tile<kBytes>(part, tiles + t * k * kWidth, first, last, column + t * kWidth);
        }
      });
      if (a.streamed) finish_streams();
    });
    column += count * kWidth;
  }
  if (column == a.n) return;
  parallel_rows(a.ptr, m, a.n - column, [&](int64_t first, int64_t last) {
    spmm_lines(a, first, last, column);
    if (a.streamed) finish_streams();
  });
}

Tensor spmm(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
            const Tensor& val, const Tensor& x) {
  const ScalarType dtype = x.scalar_type();
  check_view(ptr, idx, perm);
  check_tensor(x, 2, dtype, "x");
  check_tensor(val, 1, dtype, "val");
  check_size(val, 0, idx.size(0), "val");
  const int64_t m = ptr.size(0) - 1, n = x.size(1);
  Tensor y = empty(x, {m, n});
  dispatch(ptr.scalar_type(), without_sign(dtype), [&]<class index_t, class scalar_t>() {
    const Spmm<index_t, scalar_t> a{data<index_t>(ptr),
                                    data<index_t>(idx),
                                    data<index_t>(perm),
                                    data<scalar_t>(val),
                                    data<scalar_t>(x),
                                    mutable_data<scalar_t>(y),
                                    n,
                                    idx.size(0),
                                    bytes_ahead(x),
                                    worth_streaming(y)};
    if constexpr (std::is_floating_point_v<scalar_t>) {
      if (worth_tiling(a, x.size(0))) return spmm_tiled(a, m, x);
    }
    parallel_rows(a.ptr, m, n, [&](int64_t first, int64_t last) {
      spmm_lines(a, first, last);
      if (a.streamed) finish_streams();
    });
  });
  return y;
}

Tensor sddmm(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
             const Tensor& g, const Tensor& x) {
  const ScalarType dtype = x.scalar_type();
  check_view(ptr, idx, perm);
  check_tensor(g, 2, dtype, "g");
  check_tensor(x, 2, dtype, "x");
  const int64_t m = ptr.size(0) - 1, n = x.size(1);
  check_size(g, 0, m, "g");
  check_size(g, 1, n, "g");
  Tensor out = empty(x, {idx.size(0)});
  dispatch(ptr.scalar_type(), without_sign(dtype), [&]<class index_t, class scalar_t>() {
    const Sddmm<index_t, scalar_t> a{data<index_t>(ptr),
                                     data<index_t>(idx),
                                     data<index_t>(perm),
                                     data<scalar_t>(g),
                                     data<scalar_t>(x),
                                     mutable_data<scalar_t>(out),
                                     n,
                                     idx.size(0),
                                     bytes_ahead(x)};
    parallel_rows(a.ptr, m, n, [&](int64_t first, int64_t last) { sddmm_lines(a, first, last); });
  });
  return out;
}

// One pass where the widths allow it, two where not: a result of low precision would be rounded
// between blocks of columns.
std::tuple<Tensor, Tensor> spmm_sddmm(const Tensor& ptr, const Tensor& idx,
                                      const std::optional<Tensor>& perm, const Tensor& val,
                                      const Tensor& g, const Tensor& x) {
  const ScalarType dtype = x.scalar_type();
  const bool real = dtype == ScalarType::Float || dtype == ScalarType::Double;
  const int64_t n = x.dim() == 2 ? x.size(1) : 0;
  const int64_t vector = real ? vector_bytes() / static_cast<int64_t>(x.element_size()) : 1;
  if (!real || n == 0 || n % vector != 0) {
    return {spmm(ptr, idx, perm, val, x), sddmm(ptr, idx, perm, g, x)};
  }
  check_view(ptr, idx, perm);
  check_tensor(x, 2, dtype, "x");
  check_tensor(val, 1, dtype, "val");
  check_size(val, 0, idx.size(0), "val");
  check_tensor(g, 2, dtype, "g");
  const int64_t m = ptr.size(0) - 1, nse = idx.size(0);
  check_size(g, 0, m, "g");
  check_size(g, 1, n, "g");
  Tensor y = empty(x, {m, n}), out = empty(x, {nse});
  dispatch(ptr.scalar_type(), dtype, [&]<class index_t, class scalar_t>() {
    if constexpr (std::is_floating_point_v<scalar_t>) {
      const auto *starts = data<index_t>(ptr), *indices = data<index_t>(idx);
      const auto* order = data<index_t>(perm);
      const auto* rows = data<scalar_t>(x);
      const SpmmSddmm<index_t, scalar_t> a{
          {starts, indices, order, data<scalar_t>(val), rows, mutable_data<scalar_t>(y), n, nse,
           bytes_ahead(x), worth_streaming(y)},
          {starts, indices, order, data<scalar_t>(g), rows, mutable_data<scalar_t>(out), n, nse}};
      parallel_rows(starts, m, 2 * n, [&](int64_t first, int64_t last) {
        with_vectors([&]<int kBytes>() { spmm_sddmm_rows<kBytes>(a, first, last); });
        if (a.sums.streamed) finish_streams();
      });
    }
  });
  return {y, out};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("spmm", TORCH_BOX(&spmm));
  m.impl("sddmm", TORCH_BOX(&sddmm));
  m.impl("spmm_sddmm", TORCH_BOX(&spmm_sddmm));
}

}  // namespace spgrad
