// Host functions of attention over the elements of blocks: see attention/blocks.h.
#include "products/attention/blocks.h"

#include <tuple>

#include "products/attention/arguments.h"

namespace spgrad {
namespace {

// An operand (n, features) of the columns of blocks, turned for dots.
template <class F>
Array<F> turned_for(const F* x, int64_t width, int64_t n, int64_t features) {
  auto out = array<F>(n * features);
  parallel_entries(n / width, width * features, [&](int64_t first, int64_t last) {
    turn_blocks(x, width, features, features, first, last, out.get());
  });
  return out;
}

std::tuple<Tensor, Tensor> block_attention(const Tensor& ptr, const Tensor& idx,
                                           const std::optional<Tensor>& perm,
                                           const std::optional<Tensor>& bias, const Tensor& q,
                                           const Tensor& k, const Tensor& v, double scale,
                                           int64_t block_lines, int64_t block_width) {
  check_blocks(ptr, idx, perm, block_lines, block_width);
  const Sizes sizes = check_attention(ptr, idx, perm, bias, q, k, v, block_lines, block_width);
  const auto [heads, m, n, d, e, nse, biases] = sizes;
  Tensor out = empty(q, {heads, m, e}), lse = empty(q, {heads, m});
  const auto attend = [&, heads = heads, m = m, n = n, d = d, e = e]<class index_t, class F>() {
    const auto view = view_of<index_t>(ptr, idx, perm, block_lines, block_width, false);
    const SplitRows<index_t> split(view.ptr, m / block_lines);
    const auto outs = array<F>(split.slots() * block_lines * e);
    const auto sums = array<F>(split.slots() * block_lines);
    for (int64_t h = 0; h < heads; ++h) {
      const auto turned_k = turned_for(data<F>(k) + h * n * d, block_width, n, d);
      const BlockAttention<index_t, F> head{
          .scores = {.view = view,
                     .bias = of_head(data<F>(bias), sizes, h),
                     .scale = static_cast<F>(scale)},
          .q = data<F>(q) + h * m * d,
          .turned_k = turned_k.get(),
          .v = data<F>(v) + h * n * e,
          .d = d,
          .e = e,
          .out = mutable_data<F>(out) + h * m * e,
          .lse = mutable_data<F>(lse) + h * m,
      };
      split.parallel(view.size() * (d + e), [&](const auto& part) {
        auto of_part = head;
        of_part.scores.view.ptr = part.starts;
        of_part.row = part.row;
        if (part.row >= 0) {
          of_part.out = outs.get() + part.slot * block_lines * e;
          of_part.lse = sums.get() + part.slot * block_lines;
        }
        of_part.lines(part.first, part.last);
      });
      split.for_cut([&](int64_t i, int64_t slot, int64_t pieces) {
        const int64_t from = slot * block_lines, to = i * block_lines;
        join_attentions(outs.get() + from * e, sums.get() + from, pieces, block_lines, e,
                        head.out + to * e, head.lse + to);
      });
    }
  };
  dispatch_wide(ptr.scalar_type(), q.scalar_type(), attend);
  return {out, lse};
}

// All lines of a head, in parallel; `pieces` is for the gradients of long ones.
template <class index_t, class F>
void differentiate_lines(const BlockAttentionBackward<index_t, F>& head,
                         const SplitRows<index_t>& split, F* pieces) {
  const auto& view = head.scores.view;
  split.parallel(2 * view.size() * (head.d + head.e), [&](const auto& part) {
    auto of_part = head;
    of_part.scores.view.ptr = part.starts;
    of_part.row = part.row;
    if (part.row >= 0) of_part.dq = pieces + part.slot * view.lines * head.d;
    of_part.lines(part.first, part.last);
  });
  split.join(pieces, view.lines * head.d, head.dq);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> block_attention_backward(
    const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm, const Tensor& cols_ptr,
    const Tensor& cols_idx, const std::optional<Tensor>& cols_perm,
    const std::optional<Tensor>& bias, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& g, const Tensor& lse, const Tensor& delta, double scale, int64_t block_lines,
    int64_t block_width) {
  const ScalarType dtype = q.scalar_type();
  check_blocks(ptr, idx, perm, block_lines, block_width);
  const Sizes sizes = check_attention(ptr, idx, perm, bias, q, k, v, block_lines, block_width);
  const auto [heads, m, n, d, e, nse, biases] = sizes;
  check_view(cols_ptr, cols_idx, cols_perm);
  check_tensor(cols_ptr, 1, ptr.scalar_type(), "cols_ptr");
  check_size(cols_ptr, 0, n / block_width + 1, "cols_ptr");
  check_size(cols_idx, 0, idx.size(0), "cols_idx");
  check_cotangent(sizes, dtype, g, lse, delta);
  Tensor dq = empty(q, {heads, m, d}), dk = empty(q, {heads, n, d}), dv = empty(q, {heads, n, e});
  Tensor weights = empty(q, {nse}), changes = empty(q, {nse});
  Tensor d_bias = bias && bias->dim() == 2 ? empty(q, {biases, nse}) : empty(q, {bias ? nse : 0});
  const auto differentiate = [&, heads = heads, m = m, n = n, d = d,
                              e = e]<class index_t, class F>() {
    const auto view = view_of<index_t>(ptr, idx, perm, block_lines, block_width, false);
    const auto columns =
        view_of<index_t>(cols_ptr, cols_idx, cols_perm, block_width, block_lines, true);
    const SplitRows<index_t> split(view.ptr, m / block_lines);
    const auto pieces = array<F>(split.slots() * block_lines * d);
    F* const of_bias = bias ? mutable_data<F>(d_bias) : nullptr;
    if (bias) std::fill_n(of_bias, d_bias.numel(), F{0});
    for (int64_t h = 0; h < heads; ++h) {
      const auto turned_k = turned_for(data<F>(k) + h * n * d, block_width, n, d);
      const auto turned_v = turned_for(data<F>(v) + h * n * e, block_width, n, e);
      const BlockAttentionBackward<index_t, F> head{
          .scores = {.view = view,
                     .bias = of_head(data<F>(bias), sizes, h),
                     .scale = static_cast<F>(scale)},
          .q = data<F>(q) + h * m * d,
          .k = data<F>(k) + h * n * d,
          .g = data<F>(g) + h * m * e,
          .turned_k = turned_k.get(),
          .turned_v = turned_v.get(),
          .lse = data<F>(lse) + h * m,
          .delta = data<F>(delta) + h * m,
          .d = d,
          .e = e,
          .weights = mutable_data<F>(weights),
          .changes = mutable_data<F>(changes),
          .dq = mutable_data<F>(dq) + h * m * d,
          .d_bias = of_head(of_bias, sizes, h),
      };
      differentiate_lines(head, split, pieces.get());
      const int64_t lines = n / block_width;
      multiply_blocks(columns, lines, head.changes, head.q, d, mutable_data<F>(dk) + h * n * d);
      multiply_blocks(columns, lines, head.weights, head.g, e, mutable_data<F>(dv) + h * n * e);
    }
  };
  dispatch_wide(ptr.scalar_type(), dtype, differentiate);
  return {dq, dk, dv, d_bias};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("block_attention", SPGRAD_BOX(&block_attention));
  m.impl("block_attention_backward", SPGRAD_BOX(&block_attention_backward));
}

}  // namespace spgrad
