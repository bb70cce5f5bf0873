// Host functions of attention over the entries of a pattern: see attention.h.
#include "products/attention.h"

namespace spgrad {
namespace {

// Calls f.operator()<index_t, F>(): scores of 16 bits would be too coarse, so callers widen them.
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
void check_heads(const Tensor& t, int64_t heads, int64_t lines, int64_t columns, ScalarType dtype,
                 const char* name) {
  check_tensor(t, 3, dtype, name);
  check_size(t, 0, heads, name);
  if (lines >= 0) check_size(t, 1, lines, name);
  check_size(t, 2, columns, name);
}

void check_bias(const std::optional<Tensor>& bias, int64_t nse, ScalarType dtype) {
  if (!bias) return;
  check_tensor(*bias, 1, dtype, "bias");
  check_size(*bias, 0, nse, "bias");
}

// Calls few(first, last) on ranges of lines that have at most kLongest entries each, in parallel,
// and one(i) on every longer line, after them.
template <class index_t, class Few, class One>
void for_short_and_long(const index_t* ptr, int64_t m, int64_t cost, const Few& few,
                        const One& one) {
  std::atomic<bool> found = false;
  parallel_rows(ptr, m, cost, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last;) {
      int64_t j = i;
      while (j < last && ptr[j + 1] - ptr[j] <= kLongest) ++j;
      if (i < j) {
        for_attended(ptr, i, j, few);
      }
      if (j < last) found.store(true, std::memory_order_relaxed);
      i = j + 1;
    }
  });
  for (int64_t i = 0; i < m && found; ++i) {
    if (ptr[i + 1] - ptr[i] > kLongest) one(i);
  }
}

// Where the blocks of a long line begin, and its end. They are as long however many threads there
// are.
template <class index_t>
List<index_t> blocks_of(const index_t* ptr, int64_t i) {
  List<index_t> starts;
  for (int64_t p = ptr[i]; p < ptr[i + 1]; p += kLongest) {
    starts.push_back(static_cast<index_t>(p));
  }
  starts.push_back(ptr[i + 1]);
  return starts;
}

// Line i of `a`, in blocks; each block is attention of its own, and they are joined by their lse.
template <class index_t, class F>
void attend_long(const Attention<index_t, F>& a, const index_t* ptr, int64_t i) {
  const auto starts = blocks_of(ptr, i);
  const auto count = static_cast<int64_t>(starts.size()) - 1;
  const auto out = array<F>(count * a.e);
  const auto lse = array<F>(count);
  torch::stable::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      Attention<index_t, F> block = a;
      block.q = a.q + i * a.d;
      block.out = out.get() + b * a.e;
      block.lse = lse.get() + b;
      block.lines(starts.data() + b, 0, 1);
    }
  });
  const F max = *std::max_element(lse.get(), lse.get() + count);
  F *y = a.out + i * a.e, sum = 0;
  std::fill_n(y, a.e, F{0});
  a.lse[i] = max;
  if (max == -std::numeric_limits<F>::infinity()) return;
  for (int64_t b = 0; b < count; ++b) sum += std::exp(lse[b] - max);
  for (int64_t b = 0; b < count; ++b) {
    const F share = std::exp(lse[b] - max) / sum;
    for (int64_t j = 0; j < a.e; ++j) y[j] += share * out[b * a.e + j];
  }
  a.lse[i] = max + std::log(sum);
}

// Line i of `a`, in blocks whose sums are added.
template <class index_t, class F>
void differentiate_long(const AttentionBackward<index_t, F>& a, const index_t* ptr, int64_t i) {
  const auto starts = blocks_of(ptr, i);
  const auto count = static_cast<int64_t>(starts.size()) - 1;
  const auto parts = array<F>(count * a.d);
  torch::stable::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      AttentionBackward<index_t, F> block = a;
      block.q = a.q + i * a.d;
      block.g = a.g + i * a.e;
      block.lse = a.lse + i;
      block.delta = a.delta + i;
      block.dq = parts.get() + b * a.d;
      block.lines(starts.data() + b, 0, 1);
    }
  });
  F* sum = a.dq + i * a.d;
  std::fill_n(sum, a.d, F{0});
  for (int64_t b = 0; b < count; ++b) {
    for (int64_t j = 0; j < a.d; ++j) sum[j] += parts[b * a.d + j];
  }
}

std::tuple<Tensor, Tensor> attention(const Tensor& ptr, const Tensor& idx,
                                     const std::optional<Tensor>& perm,
                                     const std::optional<Tensor>& bias, const Tensor& q,
                                     const Tensor& k, const Tensor& v, double scale) {
  const ScalarType dtype = q.scalar_type();
  check_view(ptr, idx, perm);
  check_tensor(q, 3, dtype, "q");
  check_tensor(v, 3, dtype, "v");
  const int64_t heads = q.size(0), m = q.size(1), d = q.size(2), nse = idx.size(0);
  const int64_t n = v.size(1), e = v.size(2);
  check_size(ptr, 0, m + 1, "ptr");
  check_heads(k, heads, n, d, dtype, "k");
  check_heads(v, heads, n, e, dtype, "v");
  check_bias(bias, nse, dtype);
  Tensor out = empty(q, {heads, m, e}), lse = empty(q, {heads, m});
  dispatch_wide(ptr.scalar_type(), dtype, [&]<class index_t, class F>() {
    const auto* starts = data<index_t>(ptr);
    const auto head = [&](int64_t h) {
      return Attention<index_t, F>{
          {data<index_t>(idx), data<index_t>(perm), data<F>(bias), static_cast<F>(scale), nse},
          data<F>(q) + h * m * d,
          data<F>(k) + h * n * d,
          data<F>(v) + h * n * e,
          d,
          e,
          mutable_data<F>(out) + h * m * e,
          mutable_data<F>(lse) + h * m};
    };
    for_short_and_long(
        starts, m, heads * (d + e),
        [&](int64_t first, int64_t last) {
          for (int64_t h = 0; h < heads; ++h) {
            head(h).lines(starts, first, last);
          }
        },
        [&](int64_t i) {
          for (int64_t h = 0; h < heads; ++h) attend_long(head(h), starts, i);
        });
  });
  return {out, lse};
}

// The gradients of keys and values: sums by columns of what the rows have found.
template <class index_t, class F>
void by_columns(const index_t* ptr, int64_t n, const Spmm<index_t, F>& keys,
                const Spmm<index_t, F>& values) {
  parallel_rows(ptr, n, keys.n + values.n, [&](int64_t first, int64_t last) {
    spmm_lines(keys, first, last);
    spmm_lines(values, first, last);
  });
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm, const Tensor& cols_ptr,
    const Tensor& cols_idx, const std::optional<Tensor>& cols_perm,
    const std::optional<Tensor>& bias, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& g, const Tensor& lse, const Tensor& delta, double scale) {
  const ScalarType dtype = q.scalar_type();
  check_view(ptr, idx, perm);
  check_view(cols_ptr, cols_idx, cols_perm);
  check_tensor(cols_ptr, 1, ptr.scalar_type(), "cols_ptr");
  check_tensor(q, 3, dtype, "q");
  check_tensor(v, 3, dtype, "v");
  const int64_t heads = q.size(0), m = q.size(1), d = q.size(2), nse = idx.size(0);
  const int64_t n = v.size(1), e = v.size(2);
  check_size(ptr, 0, m + 1, "ptr");
  check_size(cols_ptr, 0, n + 1, "cols_ptr");
  check_size(cols_idx, 0, nse, "cols_idx");
  check_heads(k, heads, n, d, dtype, "k");
  check_heads(v, heads, n, e, dtype, "v");
  check_heads(g, heads, m, e, dtype, "g");
  check_bias(bias, nse, dtype);
  for (const Tensor& of_rows : {lse, delta}) {
    check_tensor(of_rows, 2, dtype, "lse, delta");
    check_size(of_rows, 0, heads, "lse, delta");
    check_size(of_rows, 1, m, "lse, delta");
  }
  Tensor dq = empty(q, {heads, m, d}), dk = empty(q, {heads, n, d}), dv = empty(q, {heads, n, e});
  Tensor weights = empty(q, {nse}), changes = empty(q, {nse});
  Tensor d_bias = empty(q, {bias ? nse : 0});
  dispatch_wide(ptr.scalar_type(), dtype, [&]<class index_t, class F>() {
    const auto *starts = data<index_t>(ptr), *cols = data<index_t>(cols_ptr);
    F *w = mutable_data<F>(weights), *c = mutable_data<F>(changes);
    F* of_bias = bias ? mutable_data<F>(d_bias) : nullptr;
    if (bias) std::fill_n(of_bias, nse, F{0});
    const auto product = [&](const F* val, const F* x, F* y, int64_t features) {
      const auto *indices = data<index_t>(cols_idx), *order = data<index_t>(cols_perm);
      return Spmm<index_t, F>{cols, indices, order, val, x, y, features, nse};
    };
    for (int64_t h = 0; h < heads; ++h) {
      const F *of_q = data<F>(q) + h * m * d, *of_g = data<F>(g) + h * m * e;
      const AttentionBackward<index_t, F> a{
          {data<index_t>(idx), data<index_t>(perm), data<F>(bias), static_cast<F>(scale), nse},
          of_q,
          data<F>(k) + h * n * d,
          data<F>(v) + h * n * e,
          of_g,
          data<F>(lse) + h * m,
          data<F>(delta) + h * m,
          d,
          e,
          w,
          c,
          mutable_data<F>(dq) + h * m * d,
          of_bias};
      for_short_and_long(
          starts, m, 2 * (d + e),
          [&](int64_t first, int64_t last) { a.lines(starts, first, last); },
          [&](int64_t i) { differentiate_long(a, starts, i); });
      by_columns(cols, n, product(c, of_q, mutable_data<F>(dk) + h * n * d, d),
                 product(w, of_g, mutable_data<F>(dv) + h * n * e, e));
    }
  });
  return {dq, dk, dv, d_bias};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("attention", SPGRAD_BOX(&attention));
  m.impl("attention_backward", SPGRAD_BOX(&attention_backward));
}

}  // namespace spgrad
