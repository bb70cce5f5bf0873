// The host functions of attention whose scores are leaky_relu of sums, as in graph attention
// networks, and of its gradients: see additive_rows.h and additive_columns.h.
#include <algorithm>
#include <tuple>

#include "common/arguments.h"
#include "common/split_rows.h"
#include "products/attention/arguments.h"
#include "products/graphs/additive_columns.h"
#include "products/graphs/additive_rows.h"

namespace spgrad {
namespace {

// Sizes: (m, heads) numbers of rows, (k, heads) numbers of columns, (k, heads * n) features, nse
// entries.
struct AdditiveSizes {
  int64_t m, k, heads, n, nse;

  int64_t width() const { return heads * n; }
};

void check_matrix(const Tensor& t, int64_t rows, int64_t columns, ScalarType dtype,
                  const char* name) {
  check_tensor(t, 2, dtype, name);
  check_size(t, 0, rows, name);
  check_size(t, 1, columns, name);
}

// Checks the operands that attention and its gradients have in common. `lines` of `ptr` are rows
// or columns.
AdditiveSizes check_additive(const Tensor& ptr, const Tensor& idx,
                             const std::optional<Tensor>& perm, const std::optional<Tensor>& bias,
                             const Tensor& left, const Tensor& right, const Tensor& x) {
  const ScalarType dtype = x.scalar_type();
  check_view(ptr, idx, perm);
  check_tensor(left, 2, dtype, "left");
  check_tensor(x, 2, dtype, "x");
  const int64_t heads = left.size(1), width = x.size(1);
  STD_TORCH_CHECK(heads == 0 ? width == 0 : width % heads == 0, "spgrad: `x` has ", width,
                  " columns, not a multiple of ", heads, " heads.");
  check_matrix(right, x.size(0), heads, dtype, "right");
  if (bias) check_matrix(*bias, idx.size(0), heads, dtype, "bias");
  return {.m = left.size(0),
          .k = x.size(0),
          .heads = heads,
          .n = heads == 0 ? 0 : width / heads,
          .nse = idx.size(0)};
}

// The results of `m` rows or pieces, and pointers to them. Without `split`, the results over the
// scores above zero are empty.
struct ResultTensors {
  Tensor out, max, total, above, share;

  ResultTensors(const Tensor& like, int64_t m, const AdditiveSizes& sizes, bool split)
      : out(empty(like, {m, sizes.width()})),
        max(empty(like, {m, sizes.heads})),
        total(empty(like, {m, sizes.heads})),
        above(empty(like, {split ? m : 0, sizes.width()})),
        share(empty(like, {split ? m : 0, sizes.heads})) {}

  template <class F>
  AdditiveResults<F> pointers(bool split) const {
    return {.out = mutable_data<F>(out),
            .max = mutable_data<F>(max),
            .total = mutable_data<F>(total),
            .above = split ? mutable_data<F>(above) : nullptr,
            .share = split ? mutable_data<F>(share) : nullptr};
  }
};

// The same from row i on.
template <class F>
AdditiveResults<F> from_row(const AdditiveResults<F>& all, int64_t i, const AdditiveSizes& sizes) {
  const auto at = [&](F* of_rows, int64_t columns) {
    return of_rows == nullptr ? nullptr : of_rows + i * columns;
  };
  return {.out = at(all.out, sizes.width()),
          .max = at(all.max, sizes.heads),
          .total = at(all.total, sizes.heads),
          .above = at(all.above, sizes.width()),
          .share = at(all.share, sizes.heads)};
}

// Computes the results of all rows; the results of a long row are combined from those of its
// pieces.
template <class index_t, class F>
void attend_rows(const AdditiveRows<index_t, F>& all, const Tensor& like,
                 const AdditiveSizes& sizes, bool split) {
  const SplitRows<index_t> cut(all.ptr, sizes.m);
  const ResultTensors joined(like, cut.slots(), sizes, split);
  const auto pieces = joined.pointers<F>(split);
  cut.parallel(sizes.width() + sizes.heads, [&](const auto& part) {
    AdditiveRows<index_t, F> lines = all;
    lines.ptr = part.starts;
    if (part.row >= 0) {
      lines.left += part.row * sizes.heads;
      lines.step = 0;
      lines.results = from_row(pieces, part.slot, sizes);
      lines.traffic.streamed = false;
    }
    lines.rows(part.first, part.last);
  });
  cut.for_cut([&](int64_t row, int64_t slot, int64_t count) {
    join_pieces(from_row(pieces, slot, sizes), count, from_row(all.results, row, sizes),
                sizes.heads, sizes.n);
  });
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> additive_attention(
    const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
    const std::optional<Tensor>& bias, const Tensor& left, const Tensor& right, const Tensor& x,
    double slope, bool split) {
  const AdditiveSizes sizes = check_additive(ptr, idx, perm, bias, left, right, x);
  check_size(left, 0, ptr.size(0) - 1, "left");
  const ResultTensors made(x, sizes.m, sizes, split);
  const auto attend = [&]<class index_t, class F>() {
    Traffic traffic = choose_traffic(idx, x, {.sums_only = true});
    traffic.streamed = worth_streaming(made.out) && (!split || worth_streaming(made.above));
    const AdditiveRows<index_t, F> all{
        .ptr = data<index_t>(ptr),
        .idx = data<index_t>(idx),
        .perm = data<index_t>(perm),
        .bias = data<F>(bias),
        .left = data<F>(left),
        .right = data<F>(right),
        .x = data<F>(x),
        .results = made.pointers<F>(split),
        .slope = static_cast<F>(slope),
        .heads = sizes.heads,
        .n = sizes.n,
        .nse = sizes.nse,
        .traffic = traffic,
        .ahead = choose_traffic(idx, right, {}).ahead,
    };
    attend_rows(all, x, sizes, split);
  };
  if (sizes.heads > 0) dispatch_wide(ptr.scalar_type(), x.scalar_type(), attend);
  return {made.out, made.max, made.total, made.above, made.share};
}

// Checks the further operands of the gradients: results of the forward.
void check_results(const AdditiveSizes& sizes, const Tensor& g, const Tensor& out,
                   const Tensor& max, const Tensor& total, const Tensor& above,
                   const Tensor& share) {
  const ScalarType dtype = g.scalar_type();
  check_matrix(g, sizes.m, sizes.width(), dtype, "g");
  check_matrix(out, sizes.m, sizes.width(), dtype, "out");
  check_matrix(max, sizes.m, sizes.heads, dtype, "max");
  check_matrix(total, sizes.m, sizes.heads, dtype, "total");
  STD_TORCH_CHECK(above.dim() == 2, "spgrad: `above` has ", above.dim(), " dimensions, not 2.");
  const int64_t rows = above.size(0);
  STD_TORCH_CHECK(rows == 0 || rows == sizes.m, "spgrad: `above` has ", rows, " rows, not ",
                  sizes.m, " or 0.");
  check_matrix(above, rows, sizes.width(), dtype, "above");
  check_matrix(share, rows, sizes.heads, dtype, "share");
}

// Computes the gradients of all columns; the gradients of a long column are combined from those of
// its pieces.
template <class index_t, class F>
void differentiate_columns(const AdditiveColumns<index_t, F>& all, int64_t k) {
  const int64_t heads = all.heads, width = heads * all.n;
  const SplitRows<index_t> cut(all.ptr, k);
  const auto of_right = array<F>(cut.slots() * heads), of_x = array<F>(cut.slots() * width);
  cut.parallel(2 * width + heads, [&](const auto& part) {
    AdditiveColumns<index_t, F> lines = all;
    lines.ptr = part.starts;
    if (part.row >= 0) {
      lines.own = part.row;
      lines.d_right = of_right.get() + part.slot * heads;
      lines.dx = of_x.get() + part.slot * width;
      lines.traffic.streamed = false;
    }
    lines.columns(part.first, part.last);
  });
  cut.join(of_right.get(), heads, all.d_right);
  cut.join(of_x.get(), width, all.dx);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> additive_attention_backward(
    const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
    const std::optional<Tensor>& bias, const Tensor& left, const Tensor& right, const Tensor& x,
    double slope, const Tensor& g, const Tensor& out, const Tensor& max, const Tensor& total,
    const Tensor& above, const Tensor& share) {
  const AdditiveSizes sizes = check_additive(ptr, idx, perm, bias, left, right, x);
  check_size(x, 0, ptr.size(0) - 1, "x");
  check_results(sizes, g, out, max, total, above, share);
  const int64_t heads = sizes.heads;
  const bool split = above.size(0) > 0;
  const Tensor d_left = empty(x, {above.size(0), heads}), d_right = empty(x, {sizes.k, heads});
  const Tensor dx = empty(x, {sizes.k, sizes.width()});
  const Tensor d_bias = empty(x, {bias ? sizes.nse : 0, heads});
  const Tensor numbers = empty(x, {sizes.m, 4 * heads});
  const auto differentiate = [&]<class index_t, class F>() {
    const AdditiveRowGradients<F> by_row{
        .left = data<F>(left),
        .g = data<F>(g),
        .results = {data<F>(out), data<F>(max), data<F>(total), data<F>(above), data<F>(share)},
        .d_left = split ? mutable_data<F>(d_left) : nullptr,
        .numbers = mutable_data<F>(numbers),
        .slope = static_cast<F>(slope),
        .heads = heads,
        .n = sizes.n,
    };
    parallel_entries(sizes.m, 2 * sizes.width() + heads,
                     [&](int64_t first, int64_t last) { by_row.rows(first, last); });
    Traffic traffic = choose_traffic(idx, g, {.sums_only = true});
    traffic.streamed = worth_streaming(dx);
    const AdditiveColumns<index_t, F> by_column{
        .ptr = data<index_t>(ptr),
        .idx = data<index_t>(idx),
        .perm = data<index_t>(perm),
        .bias = data<F>(bias),
        .right = data<F>(right),
        .x = data<F>(x),
        .g = data<F>(g),
        .numbers = data<F>(numbers),
        .d_right = mutable_data<F>(d_right),
        .dx = mutable_data<F>(dx),
        .d_bias = bias ? mutable_data<F>(d_bias) : nullptr,
        .slope = static_cast<F>(slope),
        .heads = heads,
        .n = sizes.n,
        .nse = sizes.nse,
        .traffic = traffic,
        .ahead = choose_traffic(idx, g, {}).ahead,
        .of_numbers = choose_traffic(idx, numbers, {}).ahead,
    };
    differentiate_columns(by_column, sizes.k);
  };
  if (heads > 0) dispatch_wide(ptr.scalar_type(), x.scalar_type(), differentiate);
  return {d_left, d_right, dx, d_bias};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("additive_attention", SPGRAD_BOX(&additive_attention));
  m.impl("additive_attention_backward", SPGRAD_BOX(&additive_attention_backward));
}

}  // namespace spgrad
