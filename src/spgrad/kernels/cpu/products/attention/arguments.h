// The arguments of attention over entries or blocks, and their checks.
#pragma once

#include <cstdint>
#include <optional>

#include "common/arguments.h"
#include "common/dispatch.h"

namespace spgrad {

// Calls f.operator()<index_t, F>(). Scores of 16 bits would be too coarse, so callers widen q, k,
// v.
template <class F>
void dispatch_wide(ScalarType index, ScalarType value, F&& f) {
  STD_TORCH_CHECK(value == ScalarType::Float || value == ScalarType::Double,
                  "spgrad: attention takes float32 and float64, not ", value, ".");
  dispatch_index(index, [&]<class index_t>() {
    if (value == ScalarType::Float) return f.template operator()<index_t, float>();
    f.template operator()<index_t, double>();
  });
}

// (heads, lines, columns) of one dtype.
inline void check_heads(const Tensor& t, int64_t heads, int64_t lines, int64_t columns,
                        ScalarType dtype, const char* name) {
  check_tensor(t, 3, dtype, name);
  check_size(t, 0, heads, name);
  if (lines >= 0) check_size(t, 1, lines, name);
  check_size(t, 2, columns, name);
}

// (heads, m, d) queries, (heads, n, d) keys, (heads, n, e) values, nse entries; head h has the
// bias of number h % biases.
struct Sizes {
  int64_t heads, m, n, d, e, nse, biases;
};

// Checks the arguments that attention and its gradients have in common. An entry of the view is a
// block of `lines` x `width` elements.
inline Sizes check_attention(const Tensor& ptr, const Tensor& idx,
                             const std::optional<Tensor>& perm, const std::optional<Tensor>& bias,
                             const Tensor& q, const Tensor& k, const Tensor& v, int64_t lines = 1,
                             int64_t width = 1) {
  const ScalarType dtype = q.scalar_type();
  check_view(ptr, idx, perm);
  check_tensor(q, 3, dtype, "q");
  check_tensor(v, 3, dtype, "v");
  const Sizes sizes{.heads = q.size(0),
                    .m = q.size(1),
                    .n = v.size(1),
                    .d = q.size(2),
                    .e = v.size(2),
                    .nse = idx.size(0) * lines * width,
                    .biases = bias && bias->dim() == 2 ? bias->size(0) : 1};
  check_size(q, 1, (ptr.size(0) - 1) * lines, "q");
  STD_TORCH_CHECK(sizes.n % width == 0, "spgrad: `v` has ", sizes.n, " rows, which blocks of ",
                  width, " do not divide.");
  check_heads(k, sizes.heads, sizes.n, sizes.d, dtype, "k");
  check_heads(v, sizes.heads, sizes.n, sizes.e, dtype, "v");
  if (bias) {
    check_columns(*bias, "bias");
    check_tensor(*bias, bias->dim(), dtype, "bias");
    check_size(*bias, bias->dim() - 1, sizes.nse, "bias");
    STD_TORCH_CHECK(sizes.heads == 0 || (sizes.biases > 0 && sizes.heads % sizes.biases == 0),
                    "spgrad: `bias` has ", sizes.biases, " rows for ", sizes.heads, " heads.");
  }
  return sizes;
}

// Where the numbers of head h stand in a tensor like the bias; null where there is none.
template <class F>
F* of_head(F* bias, const Sizes& sizes, int64_t h) {
  return bias == nullptr ? nullptr : bias + h % sizes.biases * sizes.nse;
}

// Checks what the gradients have besides.
inline void check_cotangent(const Sizes& sizes, ScalarType dtype, const Tensor& g,
                            const Tensor& lse, const Tensor& delta) {
  check_heads(g, sizes.heads, sizes.m, sizes.e, dtype, "g");
  for (const Tensor& of_rows : {lse, delta}) {
    check_tensor(of_rows, 2, dtype, "lse, delta");
    check_size(of_rows, 0, sizes.heads, "lse, delta");
    check_size(of_rows, 1, sizes.m, "lse, delta");
  }
}

}  // namespace spgrad
