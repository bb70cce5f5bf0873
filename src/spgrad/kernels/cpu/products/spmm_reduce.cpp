// Host functions of sparse times dense over maxima, minima and products: see spmm_reduce.h.
#include "products/spmm_reduce.h"

#include <algorithm>
#include <tuple>
#include <type_traits>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/threads.h"
#include "reading/traffic.h"

namespace spgrad {
namespace {

template <bool kPlus>
std::tuple<Tensor, Tensor> extrema(const Tensor& ptr, const Tensor& idx,
                                   const std::optional<Tensor>& perm, const Tensor& val,
                                   const Tensor& x, bool largest) {
  const ScalarType dtype = x.scalar_type();
  check_spmm(ptr, idx, perm, val, x);
  const int64_t m = ptr.size(0) - 1, n = x.size(1);
  Tensor y = empty(x, {m, n}), arg = empty(ptr, {m, n});
  const Traffic traffic = choose_traffic(idx, x, {});
  dispatch_ordered(ptr.scalar_type(), dtype, [&]<class index_t, class scalar_t>() {
    if constexpr (kPlus && std::is_integral_v<scalar_t>) {
      STD_TORCH_CHECK(false, "spgrad: values of dtype ", dtype,
                      " are not supported: a row without entries gives infinity.");
    } else {
      const SpmmReduce<index_t, scalar_t, kPlus> a{
          .ptr = data<index_t>(ptr),
          .idx = data<index_t>(idx),
          .perm = data<index_t>(perm),
          .val = data<scalar_t>(val),
          .x = data<scalar_t>(x),
          .y = mutable_data<scalar_t>(y),
          .arg = mutable_data<index_t>(arg),
          .n = n,
          .nse = idx.size(0),
          .largest = largest,
          .ahead = traffic.ahead,
          .by_blocks = traffic.by_blocks,
          .streamed =
              sizeof(index_t) == sizeof(scalar_t) && worth_streaming(y) && worth_streaming(arg),
      };
      parallel_rows(a.ptr, m, n, [&](int64_t first, int64_t last) {
        with_vectors([&]<int kBytes>() { reduce_rows<kBytes>(a, first, last); });
        if (a.streamed) finish_streams();
      });
    }
  });
  return {y, arg};
}

// Products of integers wrap, and their low bits are the same for signed and unsigned elements.
Tensor spmm_prod_op(const Tensor& ptr, const Tensor& idx, const Tensor& x) {
  const ScalarType dtype = x.scalar_type();
  check_view(ptr, idx, std::nullopt);
  check_tensor(x, 2, dtype, "x");
  const int64_t m = ptr.size(0) - 1, n = x.size(1);
  Tensor y = empty(x, {m, n});
  dispatch(ptr.scalar_type(), dtype == ScalarType::Char ? ScalarType::Byte : dtype,
           [&]<class index_t, class scalar_t>() {
             const SpmmProd<index_t, scalar_t> a{
                 .ptr = data<index_t>(ptr),
                 .idx = data<index_t>(idx),
                 .x = data<scalar_t>(x),
                 .y = mutable_data<scalar_t>(y),
                 .n = n,
                 .nse = idx.size(0),
             };
             parallel_rows(a.ptr, m, n, [&](int64_t first, int64_t last) {
               with_vectors([&]<int kBytes>() { prod_rows<kBytes>(a, first, last); });
             });
           });
  return y;
}

// The gradients of spmm_reduce in the values (nse) and in x (k, n). arg (m, n) has the entry whose
// product is the element of y, or -1. 16-bit floats are summed in float. One thread computes both
// gradients in one pass. Several threads each have their own rows for the gradient of the values
// and their own columns for that of x, so the result does not depend on their number. O(m n + nse +
// k n) time; memory for the sums if these are wider than the results.
template <class index_t, class scalar_t>
struct ReduceBackward {
  using Sum = accumulate_t<scalar_t>;
  const index_t *ptr, *idx, *perm;
  const scalar_t *val, *x, *g;
  const index_t* arg;
  int64_t m, n;
  Sum *of_values, *of_x;

  // A row of at most kShort entries is read once for each entry, a vector of columns at a time.
  // In a longer row most of these reads would find other entries, so each column looks up its one
  // entry.
  static constexpr int64_t kShort = 16;

  SPGRAD_INLINE int64_t value(int64_t p) const { return perm == nullptr ? p : int64_t{perm[p]}; }

  // Not fused with the addition to a sum: one thread has another function than several, and other
  // columns in vectors, and a compiler may fuse in one of them and not in the other.
  SPGRAD_INLINE static Sum product(Sum a, Sum b) {
    Sum made = a * b;
    if constexpr (!std::is_integral_v<scalar_t>) keep_rounded(made);
    return made;
  }

  // Adds the contributions of rows [top, bottom) and columns [first, last) to the gradients that
  // are asked for.
  template <int kBytes, bool kValues, bool kX>
  SPGRAD_INLINE void add(int64_t top, int64_t bottom, int64_t first, int64_t last) const {
    if constexpr (std::is_integral_v<scalar_t>) {
      add_rows<1, kValues, kX>(top, bottom, first, last);
    } else {
      add_lanes<kFull<scalar_t, kBytes>, kValues, kX>(top, bottom, first, last);
    }
  }

  template <int kLanes, bool kValues, bool kX>
  SPGRAD_INLINE void add_lanes(int64_t top, int64_t bottom, int64_t first, int64_t last) const {
    if (last - first >= kLanes) return add_rows<kLanes, kValues, kX>(top, bottom, first, last);
    if constexpr (kLanes > 4) return add_lanes<kLanes / 2, kValues, kX>(top, bottom, first, last);
    add_rows<1, kValues, kX>(top, bottom, first, last);
  }

  template <int kLanes, bool kValues, bool kX>
  SPGRAD_INLINE void add_rows(int64_t top, int64_t bottom, int64_t first, int64_t last) const {
    for (int64_t i = top; i < bottom; ++i) {
      if constexpr (kLanes > 1) {
        if (ptr[i + 1] - ptr[i] <= kShort) {
          for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) {
            add_entry<kLanes, kValues, kX>(i, p, first, last);
          }
          continue;
        }
      }
      if constexpr (kValues) {
        for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) of_values[value(p)] = Sum{};
      }
      for (int64_t j = first; j < last; ++j) {
        const int64_t p = arg[i * n + j];
        if (p < 0) continue;
        const int64_t at = int64_t{idx[p]} * n + j, v = value(p);
        const Sum cotangent = widen(g[i * n + j]);
        if constexpr (kValues) of_values[v] += product(cotangent, widen(x[at]));
        if constexpr (kX) of_x[at] += product(cotangent, widen(val[v]));
      }
    }
  }

  // Entry p of row i. In a row with entries, every element of y has an entry, so the low bits of
  // `arg` tell the entries apart.
  template <int kLanes, bool kValues, bool kX>
  SPGRAD_INLINE void add_entry(int64_t i, int64_t p, int64_t first, int64_t last) const {
    using Position = position_t<scalar_t>;
    const int64_t at = int64_t{idx[p]} * n, v = value(p);
    const Sum weight = widen(val[v]);
    Lanes<scalar_t, kLanes> total{};
    int64_t j = first;
    for (; j + kLanes <= last; j += kLanes) {
      Vector<index_t, kLanes> entries;
      std::memcpy(&entries, arg + i * n + j, sizeof(entries));
      const auto chosen =
          __builtin_convertvector(entries, Vector<Position, kLanes>) == static_cast<Position>(p);
      Lanes<scalar_t, kLanes> cotangent, other;
      load<kLanes>(g + i * n + j, cotangent);
      if constexpr (kValues) {
        load<kLanes>(x + at + j, other);
        Lanes<scalar_t, kLanes> term = cotangent * other;
        keep_rounded(term);
        total += chosen ? term : Lanes<scalar_t, kLanes>{};
      }
      if constexpr (kX) {
        Lanes<Sum, kLanes> sum;
        load<kLanes>(of_x + at + j, sum);
        Lanes<scalar_t, kLanes> term = cotangent * weight;
        keep_rounded(term);
        sum += chosen ? term : Lanes<scalar_t, kLanes>{};
        store<kLanes>(sum, of_x + at + j);
      }
    }
    Sum sum{};
    for (int l = 0; l < kLanes; ++l) sum += total[l];
    for (; j < last; ++j) {
      if (arg[i * n + j] != p) continue;
      if constexpr (kValues) sum += product(widen(g[i * n + j]), widen(x[at + j]));
      if constexpr (kX) of_x[at + j] += product(widen(g[i * n + j]), weight);
    }
    if constexpr (kValues) of_values[v] = sum;
  }
};

// The sums that become `out`: formed in the memory of `out`, or in new memory if they are wider
// than its elements.
template <class scalar_t>
class Sums {
 public:
  using Sum = accumulate_t<scalar_t>;

  explicit Sums(const Tensor& out) : out_(mutable_data<scalar_t>(out)), count_(out.numel()) {
    if constexpr (!kInPlace) wide_ = array<Sum>(count_);
  }
  Sum* begin() {
    if constexpr (kInPlace) return out_;
    return wide_.get();
  }
  void clear() { std::fill_n(begin(), count_, Sum{}); }
  void finish() {
    if constexpr (kInPlace) return;
    for (int64_t at = 0; at < count_; ++at) out_[at] = narrow<scalar_t>(wide_[at]);
  }

 private:
  static constexpr bool kInPlace = std::is_same_v<scalar_t, Sum>;
  scalar_t* out_;
  int64_t count_;
  Array<Sum> wide_;
};

std::tuple<Tensor, Tensor> spmm_reduce_backward_op(const Tensor& ptr, const Tensor& idx,
                                                   const std::optional<Tensor>& perm,
                                                   const Tensor& val, const Tensor& x,
                                                   const Tensor& g, const Tensor& arg) {
  const ScalarType dtype = x.scalar_type();
  check_spmm(ptr, idx, perm, val, x);
  const int64_t m = ptr.size(0) - 1, n = x.size(1);
  check_tensor(g, 2, dtype, "g");
  check_tensor(arg, 2, ptr.scalar_type(), "arg");
  for (const Tensor& t : {g, arg}) {
    check_size(t, 0, m, "g, arg");
    check_size(t, 1, n, "g, arg");
  }
  Tensor grad_val = empty(val, {val.size(0)}), grad_x = empty(x, {x.size(0), n});
  dispatch_ordered(ptr.scalar_type(), dtype, [&]<class index_t, class scalar_t>() {
    Sums<scalar_t> of_values(grad_val), of_x(grad_x);
    of_x.clear();
    const ReduceBackward<index_t, scalar_t> a{
        .ptr = data<index_t>(ptr),
        .idx = data<index_t>(idx),
        .perm = data<index_t>(perm),
        .val = data<scalar_t>(val),
        .x = data<scalar_t>(x),
        .g = data<scalar_t>(g),
        .arg = data<index_t>(arg),
        .m = m,
        .n = n,
        .of_values = of_values.begin(),
        .of_x = of_x.begin(),
    };
    const auto add = [&]<bool kValues, bool kX>(int64_t top, int64_t bottom, int64_t first,
                                                int64_t last) {
      with_vectors([copy = a, top, bottom, first, last]<int kBytes>() {
        copy.template add<kBytes, kValues, kX>(top, bottom, first, last);
      });
    };
    if (torch::stable::get_num_threads() == 1) {
      add.template operator()<true, true>(0, m, 0, n);
    } else {
      parallel_rows(a.ptr, m, n, [&](int64_t first, int64_t last) {
        add.template operator()<true, false>(first, last, 0, n);
      });
      const int64_t grain = std::max<int64_t>(16, kSerialWork / std::max<int64_t>(m, 1));
      torch::stable::parallel_for(0, n, grain, [&](int64_t first, int64_t last) {
        add.template operator()<false, true>(0, m, first, last);
      });
    }
    of_values.finish();
    of_x.finish();
  });
  return {grad_val, grad_x};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("spmm_reduce", SPGRAD_BOX(&extrema<false>));
  m.impl("spmm_plus", SPGRAD_BOX(&extrema<true>));
  m.impl("spmm_reduce_backward", SPGRAD_BOX(&spmm_reduce_backward_op));
  m.impl("spmm_prod", SPGRAD_BOX(&spmm_prod_op));
}

}  // namespace spgrad
