// Multiplies values by a factor of their line and of their index.
#include <algorithm>
#include <type_traits>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/lanes.h"
#include "common/threads.h"

namespace spgrad {
namespace {

// ptr (m + 1), idx (nse), perm (nse) or null, val and out (nse), by_line (m) or null, by_index (k)
// or null. out is allocated and not initialised; perm is a bijection. Indices may be unsorted and
// repeat. Each entry is computed on its own. O(nse + m) time, no memory.
template <class index_t, class scalar_t>
struct Scale {
  const index_t *ptr, *idx, *perm;
  const scalar_t *val, *by_line, *by_index;
  scalar_t* out;
  int64_t m;
};

// Entries [first, last), which may begin and end within a line, by the factor of their line alone.
// Whole vectors take no branch that depends on the length of a line: what a vector writes beyond
// its line is written again by the next line.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void scale_lines(const Scale<index_t, scalar_t> a, int64_t first, int64_t last) {
  constexpr int64_t kElements = kFull<scalar_t, kBytes>;
  int64_t i = std::upper_bound(a.ptr, a.ptr + a.m + 1, first) - a.ptr - 1;
  for (int64_t p = first; p < last; ++i) {
    const int64_t stop = std::min<int64_t>(a.ptr[i + 1], last);
    const scalar_t factor = a.by_line[i];
    for (; p < stop && p + kElements <= last; p += kElements) {
      Lanes<scalar_t, kElements> values;
      load<kElements>(a.val + p, values);
      values *= factor;
      store<kElements>(values, a.out + p);
    }
    for (; p < stop; ++p) a.out[p] = a.val[p] * factor;
    p = stop;
  }
}

// Entries [first, last), which may begin and end within a line.
template <class index_t, class scalar_t>
SPGRAD_CLONES void scale_entries(const Scale<index_t, scalar_t>& shared, int64_t first,
                                 int64_t last) {
  const Scale<index_t, scalar_t> a = shared;  // a copy: writes to a.out cannot change it
  int64_t i =
      a.by_line == nullptr ? 0 : std::upper_bound(a.ptr, a.ptr + a.m + 1, first) - a.ptr - 1;
  for (int64_t p = first; p < last; ++i) {
    const int64_t stop = a.by_line == nullptr ? last : std::min<int64_t>(a.ptr[i + 1], last);
    for (; p < stop; ++p) {
      const int64_t q = a.perm == nullptr ? p : static_cast<int64_t>(a.perm[p]);
      accumulate_t<scalar_t> product = widen(a.val[q]);
      if (a.by_line != nullptr) product = product * widen(a.by_line[i]);
      if (a.by_index != nullptr) product = product * widen(a.by_index[a.idx[p]]);
      a.out[q] = narrow<scalar_t>(product);
    }
  }
}

void check_factor(const std::optional<Tensor>& factor, ScalarType dtype, const char* name) {
  if (factor) check_tensor(*factor, 1, dtype, name);
}

Tensor scale_op(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
                const Tensor& val, const std::optional<Tensor>& by_line,
                const std::optional<Tensor>& by_index) {
  const ScalarType dtype = val.scalar_type();
  check_view(ptr, idx, perm);
  check_tensor(val, 1, dtype, "val");
  check_size(val, 0, idx.size(0), "val");
  check_factor(by_line, dtype, "by_line");
  check_factor(by_index, dtype, "by_index");
  const int64_t m = ptr.size(0) - 1, nse = idx.size(0);
  if (by_line) check_size(*by_line, 0, m, "by_line");
  Tensor out = empty(val, {nse});
  dispatch(ptr.scalar_type(), dtype, [&]<class index_t, class scalar_t>() {
    const Scale<index_t, scalar_t> a{
        .ptr = data<index_t>(ptr),
        .idx = data<index_t>(idx),
        .perm = data<index_t>(perm),
        .val = data<scalar_t>(val),
        .by_line = data<scalar_t>(by_line),
        .by_index = data<scalar_t>(by_index),
        .out = mutable_data<scalar_t>(out),
        .m = m,
    };
    parallel_entries(nse, 1, [&](int64_t first, int64_t last) {
      if constexpr (std::is_floating_point_v<scalar_t>) {
        if (by_line && !by_index && !perm) {
          return with_vectors([&]<int kBytes>() { scale_lines<kBytes>(a, first, last); });
        }
      }
      scale_entries(a, first, last);
    });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) { m.impl("scale", SPGRAD_BOX(&scale_op)); }

}  // namespace spgrad
