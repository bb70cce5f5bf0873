// Host functions of attention over the entries of a pattern: see attention.h.
#include "attention.h"

#include <vector>

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
std::vector<index_t> blocks_of(const index_t* ptr, int64_t i) {
  std::vector<index_t> starts;
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
  const auto out = std::make_unique_for_overwrite<F[]>(count * a.e);
  const auto lse = std::make_unique_for_overwrite<F[]>(count);
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
  const auto of_a = std::make_unique_for_overwrite<F[]>(count * a.d);
  const auto of_b = std::make_unique_for_overwrite<F[]>(a.db == nullptr ? 0 : count * a.e);
  torch::stable::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      AttentionBackward<index_t, F> block = a;
      block.left = a.left + i * a.d;
      block.g = a.g + i * a.e;
      if (a.by_rows) {
        block.lse = a.lse + i;
        block.delta = a.delta + i;
      }
      block.da = of_a.get() + b * a.d;
      if (a.db != nullptr) block.db = of_b.get() + b * a.e;
      block.lines(starts.data() + b, 0, 1);
    }
  });
  const auto add = [&](const F* parts, int64_t columns, F* sum) {
    std::fill_n(sum, columns, F{0});
    for (int64_t b = 0; b < count; ++b) {
      for (int64_t j = 0; j < columns; ++j) sum[j] += parts[b * columns + j];
    }
  };
  add(of_a.get(), a.d, a.da + i * a.d);
  if (a.db != nullptr) add(of_b.get(), a.e, a.db + i * a.e);
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

std::tuple<Tensor, Tensor, Tensor> attention_backward(
    const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
    const std::optional<Tensor>& bias, const Tensor& left, const Tensor& right, const Tensor& g,
    const Tensor& v, const Tensor& lse, const Tensor& delta, double scale, bool by_rows) {
  const ScalarType dtype = left.scalar_type();
  check_view(ptr, idx, perm);
  check_tensor(left, 3, dtype, "left");
  check_tensor(right, 3, dtype, "right");
  const int64_t heads = left.size(0), m = left.size(1), d = left.size(2), nse = idx.size(0);
  const int64_t n = right.size(1), e = g.dim() == 3 ? g.size(2) : 0, rows = by_rows ? m : n;
  check_size(ptr, 0, m + 1, "ptr");
  check_heads(right, heads, n, d, dtype, "right");
  check_heads(g, heads, m, e, dtype, "g");
  check_heads(v, heads, n, e, dtype, "v");
  check_bias(bias, nse, dtype);
  for (const Tensor& of_rows : {lse, delta}) {
    check_tensor(of_rows, 2, dtype, "lse, delta");
    check_size(of_rows, 0, heads, "lse, delta");
    check_size(of_rows, 1, rows, "lse, delta");
  }
  const bool wants_bias = by_rows && bias.has_value();
  Tensor da = empty(left, {heads, m, d}), db = empty(left, {by_rows ? 0 : heads, m, e});
  Tensor d_bias = empty(left, {wants_bias ? nse : 0});
  dispatch_wide(ptr.scalar_type(), dtype, [&]<class index_t, class F>() {
    const auto* starts = data<index_t>(ptr);
    F* of_bias = wants_bias ? mutable_data<F>(d_bias) : nullptr;
    if (wants_bias) std::fill_n(of_bias, nse, F{0});
    const auto head = [&](int64_t h) {
      return AttentionBackward<index_t, F>{
          {data<index_t>(idx), data<index_t>(perm), data<F>(bias), static_cast<F>(scale), nse},
          data<F>(left) + h * m * d,
          data<F>(right) + h * n * d,
          data<F>(g) + h * m * e,
          data<F>(v) + h * n * e,
          data<F>(lse) + h * rows,
          data<F>(delta) + h * rows,
          d,
          e,
          mutable_data<F>(da) + h * m * d,
          by_rows ? nullptr : mutable_data<F>(db) + h * m * e,
          of_bias,
          by_rows};
    };
    for_short_and_long(
        starts, m, heads * 2 * (d + e),
        [&](int64_t first, int64_t last) {
          for (int64_t h = 0; h < heads; ++h) {
            head(h).lines(starts, first, last);
          }
        },
        [&](int64_t i) {
          for (int64_t h = 0; h < heads; ++h) differentiate_long(head(h), starts, i);
        });
  });
  return {da, db, d_bias};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("attention", TORCH_BOX(&attention));
  m.impl("attention_backward", TORCH_BOX(&attention_backward));
}

}  // namespace spgrad
