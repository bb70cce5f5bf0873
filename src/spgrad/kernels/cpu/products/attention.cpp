// Host functions of attention over the entries of a pattern: see attention/entries.h.
#include "products/attention/entries.h"

#include <algorithm>
#include <tuple>

#include "products/attention/arguments.h"

namespace spgrad {
namespace {

// Calls few(first, last) in parallel on ranges of rows, each with at most kLongest entries in a row
// and kAttended entries in all; then one(i) on every longer row.
template <class index_t, class Few, class One>
void for_attended(const index_t* ptr, int64_t m, int64_t cost, const Few& few, const One& one) {
  const auto batches = [&](int64_t first, int64_t last) {
    for_batches(ptr, first, last, kAttended, few);
  };
  for_short_and_long(ptr, m, kLongest, cost, batches, one);
}

// Pointers to the blocks of a long row. Their length does not depend on the number of threads.
template <class index_t>
List<index_t> blocks_of(const index_t* ptr, int64_t i) {
  List<index_t> starts;
  for (int64_t p = ptr[i]; p < ptr[i + 1]; p += kLongest) {
    starts.push_back(static_cast<index_t>(p));
  }
  starts.push_back(ptr[i + 1]);
  return starts;
}

// Row i of a head, in blocks. The kernel computes an attention for each block, and adds their
// results with weights that it computes from their lse.
template <class index_t, class F>
void attend_long(const Attention<index_t, F>& head, const index_t* ptr, int64_t i) {
  const auto starts = blocks_of(ptr, i);
  const auto count = static_cast<int64_t>(starts.size()) - 1;
  const auto out = array<F>(count * head.e);
  const auto lse = array<F>(count);
  torch::stable::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      Attention<index_t, F> part = head;
      part.q = head.q + i * head.d;
      part.out = out.get() + block * head.e;
      part.lse = lse.get() + block;
      part.rows(starts.data() + block, 0, 1);
    }
  });
  join_attentions(out.get(), lse.get(), count, 1, head.e, head.out + i * head.e, head.lse + i);
}

// Row i of the gradients of a head, in blocks whose sums are added.
template <class index_t, class F>
void differentiate_long(const AttentionBackward<index_t, F>& all, const index_t* ptr, int64_t i) {
  const HeadGradients<F>& head = all.head;
  const auto starts = blocks_of(ptr, i);
  const auto count = static_cast<int64_t>(starts.size()) - 1;
  const auto parts = array<F>(count * head.d);
  torch::stable::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      AttentionBackward<index_t, F> part = all;
      part.head = head.to(parts.get() + block * head.d);
      part.head.q += i * head.d;
      part.head.g += i * head.e;
      part.head.lse += i;
      part.head.delta += i;
      part.rows(starts.data() + block, 0, 1);
    }
  });
  F* sum = head.dq + i * head.d;
  std::fill_n(sum, head.d, F{0});
  for (int64_t block = 0; block < count; ++block) {
    for (int64_t j = 0; j < head.d; ++j) sum[j] += parts[block * head.d + j];
  }
}

template <class index_t, class F>
Scores<index_t, F> scores_of(const Tensor& idx, const std::optional<Tensor>& perm, const F* bias,
                             double scale) {
  return {.idx = data<index_t>(idx),
          .perm = data<index_t>(perm),
          .bias = bias,
          .scale = static_cast<F>(scale),
          .nse = idx.size(0)};
}

std::tuple<Tensor, Tensor> attention(const Tensor& ptr, const Tensor& idx,
                                     const std::optional<Tensor>& perm,
                                     const std::optional<Tensor>& bias, const Tensor& q,
                                     const Tensor& k, const Tensor& v, double scale) {
  const Sizes sizes = check_attention(ptr, idx, perm, bias, q, k, v);
  const auto [heads, m, n, d, e, nse, biases] = sizes;
  Tensor out = empty(q, {heads, m, e}), lse = empty(q, {heads, m});
  const auto attend = [&, heads = heads, m = m, n = n, d = d, e = e]<class index_t, class F>() {
    const auto* starts = data<index_t>(ptr);
    const auto head = [&](int64_t h) {
      return Attention<index_t, F>{
          .scores = scores_of<index_t>(idx, perm, of_head(data<F>(bias), sizes, h), scale),
          .q = data<F>(q) + h * m * d,
          .k = data<F>(k) + h * n * d,
          .v = data<F>(v) + h * n * e,
          .d = d,
          .e = e,
          .out = mutable_data<F>(out) + h * m * e,
          .lse = mutable_data<F>(lse) + h * m,
      };
    };
    for_attended(
        starts, m, heads * (d + e),
        [&](int64_t first, int64_t last) {
          for (int64_t h = 0; h < heads; ++h) head(h).rows(starts, first, last);
        },
        [&](int64_t i) {
          for (int64_t h = 0; h < heads; ++h) attend_long(head(h), starts, i);
        });
  };
  dispatch_wide(ptr.scalar_type(), q.scalar_type(), attend);
  return {out, lse};
}

// The gradients of the keys and values of one head: sums over the entries of columns. The pass by
// rows has written `changes` and `weights` before.
template <class index_t, class F>
void sum_columns(const HeadGradients<F>& head, const index_t* ptr, const index_t* idx,
                 const index_t* perm, const Sizes& sizes) {
  const auto product = [&](const F* val, const F* x, F* y, int64_t features) {
    return Spmm<index_t, F>{.ptr = ptr,
                            .idx = idx,
                            .perm = perm,
                            .val = val,
                            .x = x,
                            .y = y,
                            .n = features,
                            .nse = sizes.nse};
  };
  const auto keys = product(head.changes, head.q, head.dk, head.d);
  const auto values = product(head.weights, head.g, head.dv, head.e);
  parallel_rows(ptr, sizes.n, head.d + head.e, [&](int64_t first, int64_t last) {
    spmm_lines(keys, first, last);
    spmm_lines(values, first, last);
  });
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm, const Tensor& cols_ptr,
    const Tensor& cols_idx, const std::optional<Tensor>& cols_perm,
    const std::optional<Tensor>& bias, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& g, const Tensor& lse, const Tensor& delta, double scale) {
  const Sizes sizes = check_attention(ptr, idx, perm, bias, q, k, v);
  check_gradients(sizes, ptr, idx, cols_ptr, cols_idx, cols_perm, sizes.n, q, g, lse, delta);
  const Gradients found(sizes, q, bias);
  dispatch_wide(ptr.scalar_type(), q.scalar_type(), [&]<class index_t, class F>() {
    const auto* starts = data<index_t>(ptr);
    found.clear<F>();
    for (int64_t h = 0; h < sizes.heads; ++h) {
      const AttentionBackward<index_t, F> all{
          .scores = scores_of<index_t>(idx, perm, of_head(data<F>(bias), sizes, h), scale),
          .head = found.of_head<F>(sizes, h, q, k, v, g, lse, delta),
      };
      for_attended(
          starts, sizes.m, 2 * (sizes.d + sizes.e),
          [&](int64_t first, int64_t last) { all.rows(starts, first, last); },
          [&](int64_t i) { differentiate_long(all, starts, i); });
      sum_columns(all.head, data<index_t>(cols_ptr), data<index_t>(cols_idx),
                  data<index_t>(cols_perm), sizes);
    }
  });
  return {found.dq, found.dk, found.dv, found.d_bias};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("attention", SPGRAD_BOX(&attention));
  m.impl("attention_backward", SPGRAD_BOX(&attention_backward));
}

}  // namespace spgrad
