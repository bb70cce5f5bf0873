// Host functions of attention over the elements of blocks: see attention/blocks.h.
#include "products/attention/blocks.h"

#include <limits>
#include <tuple>

#include "products/attention/arguments.h"

namespace spgrad {
namespace {

// What is added to scores: `bias` as it is, or minus infinity where a bool bias is False.
template <class F>
struct Added {
  Array<F> of_mask;
  const F* bias;

  explicit Added(const std::optional<Tensor>& given) : bias(nullptr) {
    if (!is_mask(given)) {
      bias = data<F>(given);
      return;
    }
    const bool* const taken = data<bool>(given);
    const int64_t size = given->numel();
    of_mask = array<F>(size);
    bias = of_mask.get();
    parallel_entries(size, 1, [&](int64_t first, int64_t last) {
      constexpr F kNone = -std::numeric_limits<F>::infinity();
      for (int64_t i = first; i < last; ++i) of_mask[i] = taken[i] ? F{0} : kNone;
    });
  }
};

// An operand (n, features) whose rows belong to the columns of the blocks, turned for dots.
template <class F>
Array<F> turned_for(const F* x, int64_t width, int64_t n, int64_t features) {
  auto out = array<F>(n * features);
  parallel_entries(n / width, width * features, [&](int64_t first, int64_t last) {
    turn_blocks(x, width, features, features, first, last, out.get());
  });
  return out;
}

// Calls lines(first, last) of `all` on all lines, in parallel. For a long line, piece(part, slot)
// redirects the results of its pieces to its slots; `slot` is the first of them.
template <class Head, class index_t, class Piece>
void for_lines(const Head& all, const SplitRows<index_t>& split, int64_t cost, const Piece& piece) {
  split.parallel(cost, [&](const auto& part) {
    Head of_part = all;
    of_part.scores.view.ptr = part.starts;
    of_part.row = part.row;
    if (part.row >= 0) piece(of_part, part.slot);
    of_part.lines(part.first, part.last);
  });
}

std::tuple<Tensor, Tensor> block_attention(const Tensor& ptr, const Tensor& idx,
                                           const std::optional<Tensor>& perm,
                                           const std::optional<Tensor>& bias, const Tensor& q,
                                           const Tensor& k, const Tensor& v, double scale,
                                           int64_t block_lines, int64_t block_width) {
  check_blocks(ptr, idx, perm, block_lines, block_width);
  const Sizes sizes =
      check_attention(ptr, idx, perm, bias, q, k, v, block_lines, block_width, true);
  const auto [heads, m, n, d, e, nse, biases] = sizes;
  Tensor out = empty(q, {heads, m, e}), lse = empty(q, {heads, m});
  const auto attend = [&, heads = heads, m = m, n = n, d = d, e = e]<class index_t, class F>() {
    const auto view = view_of<index_t>(ptr, idx, perm, block_lines, block_width, false);
    const SplitRows<index_t> split(view.ptr, m / block_lines);
    const Added<F> added(bias);
    const auto outs = array<F>(split.slots() * block_lines * e);
    const auto sums = array<F>(split.slots() * block_lines);
    for (int64_t h = 0; h < heads; ++h) {
      const auto turned_k = turned_for(data<F>(k) + h * n * d, block_width, n, d);
      const BlockAttention<index_t, F> head{
          .scores = {.view = view,
                     .bias = of_head(added.bias, sizes, h),
                     .scale = static_cast<F>(scale)},
          .q = data<F>(q) + h * m * d,
          .turned_k = turned_k.get(),
          .v = data<F>(v) + h * n * e,
          .d = d,
          .e = e,
          .out = mutable_data<F>(out) + h * m * e,
          .lse = mutable_data<F>(lse) + h * m,
      };
      for_lines(head, split, view.size() * (d + e), [&](auto& part, int64_t slot) {
        part.out = outs.get() + slot * block_lines * e;
        part.lse = sums.get() + slot * block_lines;
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

std::tuple<Tensor, Tensor, Tensor, Tensor> block_attention_backward(
    const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm, const Tensor& cols_ptr,
    const Tensor& cols_idx, const std::optional<Tensor>& cols_perm,
    const std::optional<Tensor>& bias, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& g, const Tensor& lse, const Tensor& delta, double scale, int64_t block_lines,
    int64_t block_width) {
  check_blocks(ptr, idx, perm, block_lines, block_width);
  const Sizes sizes =
      check_attention(ptr, idx, perm, bias, q, k, v, block_lines, block_width, true);
  const int64_t d = sizes.d, lines = sizes.n / block_width;
  check_gradients(sizes, ptr, idx, cols_ptr, cols_idx, cols_perm, lines, q, g, lse, delta);
  const Gradients found(sizes, q, bias);
  dispatch_wide(ptr.scalar_type(), q.scalar_type(), [&]<class index_t, class F>() {
    const auto view = view_of<index_t>(ptr, idx, perm, block_lines, block_width, false);
    const auto columns =
        view_of<index_t>(cols_ptr, cols_idx, cols_perm, block_width, block_lines, true);
    const SplitRows<index_t> split(view.ptr, sizes.m / block_lines);
    const Added<F> added(bias);
    const auto pieces = array<F>(split.slots() * block_lines * d);
    found.clear<F>();
    for (int64_t h = 0; h < sizes.heads; ++h) {
      const auto head = found.of_head<F>(sizes, h, q, k, v, g, lse, delta);
      const auto turned_k = turned_for(head.k, block_width, sizes.n, d);
      const auto turned_v = turned_for(head.v, block_width, sizes.n, sizes.e);
      const BlockAttentionBackward<index_t, F> all{
          .scores = {.view = view,
                     .bias = of_head(added.bias, sizes, h),
                     .scale = static_cast<F>(scale)},
          .head = head,
          .turned_k = turned_k.get(),
          .turned_v = turned_v.get(),
      };
      const int64_t cost = 2 * view.size() * (d + sizes.e);
      for_lines(all, split, cost, [&](auto& part, int64_t slot) {
        part.head = head.to(pieces.get() + slot * block_lines * d);
      });
      split.join(pieces.get(), block_lines * d, head.dq);
      multiply_blocks(columns, lines, head.changes, head.q, d, head.dk);
      multiply_blocks(columns, lines, head.weights, head.g, head.e, head.dv);
    }
  });
  return {found.dq, found.dk, found.dv, found.d_bias};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("block_attention", SPGRAD_BOX(&block_attention));
  m.impl("block_attention_backward", SPGRAD_BOX(&block_attention_backward));
}

}  // namespace spgrad
