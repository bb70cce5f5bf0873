// Several heads on one pattern: heads_spmm, its transpose (heads_spmm on the column view) and
// heads_sddmm are each other's derivatives. The contracts and kernels are in heads/, the host
// functions in this file.
#include <algorithm>
#include <type_traits>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/split_rows.h"
#include "products/heads/heads_sddmm.h"
#include "products/heads/heads_spmm.h"

namespace spgrad {
namespace {

// Sums of products of integers wrap, and their low bits are the same for signed and unsigned
// elements.
ScalarType unsigned_like(ScalarType dtype) {
  return dtype == ScalarType::Char ? ScalarType::Byte : dtype;
}

// Refuses x if its number of columns is not a multiple of the number of heads.
void check_width(const Tensor& x, int64_t heads) {
  STD_TORCH_CHECK(heads >= 0, "spgrad: `heads` is ", heads, "; 0 or more is accepted.");
  const bool fits = heads == 0 ? x.size(1) == 0 : x.size(1) % heads == 0;
  STD_TORCH_CHECK(fits, "spgrad: `x` has ", x.size(1), " columns, not a multiple of ", heads,
                  " heads.");
}

Tensor heads_spmm(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
                  const Tensor& val, const Tensor& x) {
  const ScalarType dtype = x.scalar_type();
  check_spmm(ptr, idx, perm, val, x, 2);
  const int64_t m = ptr.size(0) - 1, heads = val.size(1), width = x.size(1);
  check_width(x, heads);
  Tensor y = empty(x, {m, width});
  if (width == 0) return y;
  dispatch(ptr.scalar_type(), unsigned_like(dtype), [&]<class index_t, class scalar_t>() {
    Traffic traffic = choose_traffic(idx, x, {.sums_only = true});
    traffic.streamed = worth_streaming(y);
    const HeadsSpmm<index_t, scalar_t> a{
        .ptr = data<index_t>(ptr),
        .idx = data<index_t>(idx),
        .perm = data<index_t>(perm),
        .val = data<scalar_t>(val),
        .x = data<scalar_t>(x),
        .y = mutable_data<scalar_t>(y),
        .heads = heads,
        .n = width / heads,
        .nse = idx.size(0),
        .traffic = traffic,
    };
    const auto rows = [](const HeadsSpmm<index_t, scalar_t>& part, int64_t first, int64_t last) {
      with_vectors([&]<int kBytes>() { heads_rows<kBytes>(part, first, last); });
      if (part.traffic.streamed) finish_streams();
    };
    if constexpr (std::is_same_v<scalar_t, accumulate_t<scalar_t>>) {
      const SplitRows<index_t> split(a.ptr, m);
      const auto joined = array<scalar_t>(split.slots() * width);
      scalar_t* const pieces = joined.get();
      split.parallel(width, [&](const auto& part) {
        HeadsSpmm<index_t, scalar_t> lines = a;
        lines.ptr = part.starts;
        if (part.row >= 0) {
          lines.y = pieces + part.slot * width;
          lines.traffic.streamed = false;
        }
        rows(lines, part.first, part.last);
      });
      split.join(pieces, width, a.y);
    } else {  // the sums of pieces would be rounded before they are added
      parallel_rows(a.ptr, m, width, [&](int64_t first, int64_t last) { rows(a, first, last); });
    }
  });
  return y;
}

Tensor heads_sddmm(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
                   const Tensor& g, const Tensor& x, int64_t heads) {
  const ScalarType dtype = x.scalar_type();
  check_sddmm(ptr, idx, perm, g, x);
  check_width(x, heads);
  const int64_t width = x.size(1);
  Tensor out = empty(x, {idx.size(0), heads});
  if (heads == 0) return out;
  dispatch(ptr.scalar_type(), unsigned_like(dtype), [&]<class index_t, class scalar_t>() {
    const HeadsSddmm<index_t, scalar_t> a{
        .ptr = data<index_t>(ptr),
        .idx = data<index_t>(idx),
        .perm = data<index_t>(perm),
        .g = data<scalar_t>(g),
        .x = data<scalar_t>(x),
        .out = mutable_data<scalar_t>(out),
        .heads = heads,
        .n = width / heads,
        .nse = idx.size(0),
        .ahead = choose_traffic(idx, x, {}).ahead,
    };
    const SplitRows<index_t> split(a.ptr, ptr.size(0) - 1);
    split.parallel(width, [&](const auto& part) {
      HeadsSddmm<index_t, scalar_t> lines = a;
      lines.ptr = part.starts;
      if (part.row >= 0) {
        lines.g += part.row * width;
        lines.step = 0;
      }
      with_vectors([&]<int kBytes>() { heads_sddmm_rows<kBytes>(lines, part.first, part.last); });
    });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("heads_spmm", SPGRAD_BOX(&heads_spmm));
  m.impl("heads_sddmm", SPGRAD_BOX(&heads_sddmm));
}

}  // namespace spgrad
