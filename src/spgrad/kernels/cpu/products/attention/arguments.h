// The arguments of attention over entries or blocks, and their checks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "products/attention/entries.h"

namespace spgrad {

// Calls f.operator()<index_t, F>(). F has no 16-bit type, because scores would be too coarse:
// callers widen q, k and v.
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

// Whether a bias is bool: then it says which elements take part.
inline bool is_mask(const std::optional<Tensor>& bias) {
  return bias && bias->scalar_type() == ScalarType::Bool;
}

// Checks the arguments that attention and its gradients have in common. An entry of the view is a
// block of `lines` x `width` elements. With `masks`, the bias may be bool.
inline Sizes check_attention(const Tensor& ptr, const Tensor& idx,
                             const std::optional<Tensor>& perm, const std::optional<Tensor>& bias,
                             const Tensor& q, const Tensor& k, const Tensor& v, int64_t lines = 1,
                             int64_t width = 1, bool masks = false) {
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
    check_tensor(*bias, bias->dim(), masks && is_mask(bias) ? ScalarType::Bool : dtype, "bias");
    check_size(*bias, bias->dim() - 1, sizes.nse, "bias");
    STD_TORCH_CHECK(sizes.heads == 0 || (sizes.biases > 0 && sizes.heads % sizes.biases == 0),
                    "spgrad: `bias` has ", sizes.biases, " rows for ", sizes.heads, " heads.");
  }
  return sizes;
}

// Points to the numbers of head h in a tensor of the bias's shape; null if there is no such tensor.
template <class F>
F* of_head(F* bias, const Sizes& sizes, int64_t h) {
  return bias == nullptr ? nullptr : bias + h % sizes.biases * sizes.nse;
}

// Checks the further operands of the gradients. The view by columns has `lines` lines.
inline void check_gradients(const Sizes& sizes, const Tensor& ptr, const Tensor& idx,
                            const Tensor& cols_ptr, const Tensor& cols_idx,
                            const std::optional<Tensor>& cols_perm, int64_t lines, const Tensor& q,
                            const Tensor& g, const Tensor& lse, const Tensor& delta) {
  const ScalarType dtype = q.scalar_type();
  check_view(cols_ptr, cols_idx, cols_perm);
  check_tensor(cols_ptr, 1, ptr.scalar_type(), "cols_ptr");
  check_size(cols_ptr, 0, lines + 1, "cols_ptr");
  check_size(cols_idx, 0, idx.size(0), "cols_idx");
  check_heads(g, sizes.heads, sizes.m, sizes.e, dtype, "g");
  for (const Tensor& of_rows : {lse, delta}) {
    check_tensor(of_rows, 2, dtype, "lse, delta");
    check_size(of_rows, 0, sizes.heads, "lse, delta");
    check_size(of_rows, 1, sizes.m, "lse, delta");
  }
}

// The tensors of the gradients of all heads, and the weights and changes of one head (nse). A bool
// bias has no gradient.
struct Gradients {
  Tensor dq, dk, dv, d_bias, weights, changes;
  bool has_bias;

  Gradients(const Sizes& sizes, const Tensor& q, const std::optional<Tensor>& bias)
      : dq(empty(q, {sizes.heads, sizes.m, sizes.d})),
        dk(empty(q, {sizes.heads, sizes.n, sizes.d})),
        dv(empty(q, {sizes.heads, sizes.n, sizes.e})),
        d_bias(biased(bias) && bias->dim() == 2 ? empty(q, {sizes.biases, sizes.nse})
                                                : empty(q, {biased(bias) ? sizes.nse : 0})),
        weights(empty(q, {sizes.nse})),
        changes(empty(q, {sizes.nse})),
        has_bias(biased(bias)) {}

  static bool biased(const std::optional<Tensor>& bias) { return bias && !is_mask(bias); }

  // Sets the gradient of the bias to zero; each head adds to it.
  template <class F>
  void clear() const {
    if (has_bias) std::fill_n(mutable_data<F>(d_bias), d_bias.numel(), F{0});
  }

  // Head h of these tensors, and of the operands.
  template <class F>
  HeadGradients<F> of_head(const Sizes& sizes, int64_t h, const Tensor& q, const Tensor& k,
                           const Tensor& v, const Tensor& g, const Tensor& lse,
                           const Tensor& delta) const {
    const int64_t queries = h * sizes.m * sizes.d, keys = h * sizes.n * sizes.d;
    const int64_t values = h * sizes.n * sizes.e;
    F* const of_bias = has_bias ? mutable_data<F>(d_bias) : nullptr;
    return {.q = data<F>(q) + queries,
            .k = data<F>(k) + keys,
            .v = data<F>(v) + values,
            .g = data<F>(g) + h * sizes.m * sizes.e,
            .lse = data<F>(lse) + h * sizes.m,
            .delta = data<F>(delta) + h * sizes.m,
            .d = sizes.d,
            .e = sizes.e,
            .weights = mutable_data<F>(weights),
            .changes = mutable_data<F>(changes),
            .dq = mutable_data<F>(dq) + queries,
            .dk = mutable_data<F>(dk) + keys,
            .dv = mutable_data<F>(dv) + values,
            .d_bias = spgrad::of_head(of_bias, sizes, h)};
  }
};

}  // namespace spgrad
