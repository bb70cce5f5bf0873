// The Kronecker product of two patterns.
#include <tuple>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/threads.h"

namespace spgrad {
namespace {

// For every entry p of line i of a, line (i, j) of the product lists all entries q of line j of b.
// The number of such an entry is p * nse_b + q, its index idx_a[p] * n_b + idx_b[q].
template <class index_t>
struct Kron {
  const index_t *ptr_a, *idx_a, *ptr_b, *idx_b;
  int64_t m_a, m_b, nse_b, n_b;
  index_t *ptr, *idx, *entry;

  void write_pointers() const {
    int64_t next = 0, line = 0;
    for (int64_t i = 0; i < m_a; ++i) {
      const int64_t length = int64_t{ptr_a[i + 1]} - ptr_a[i];
      for (int64_t j = 0; j < m_b; ++j) {
        ptr[line++] = static_cast<index_t>(next);
        next += length * (ptr_b[j + 1] - ptr_b[j]);
      }
    }
    ptr[line] = static_cast<index_t>(next);
  }

  // Writes the entries of the lines [first, last).
  void fill(int64_t first, int64_t last) const {
    int64_t to = ptr[first], i = first / m_b, j = first % m_b;
    for (int64_t line = first; line < last; ++line) {
      const int64_t begin = ptr_b[j], end = ptr_b[j + 1];
      for (int64_t p = ptr_a[i]; p < ptr_a[i + 1]; ++p) {
        const int64_t base = idx_a[p] * n_b, number = p * nse_b;
        for (int64_t q = begin; q < end; ++q, ++to) {
          idx[to] = static_cast<index_t>(base + idx_b[q]);
          entry[to] = static_cast<index_t>(number + q);
        }
      }
      if (++j == m_b) {
        j = 0;
        ++i;
      }
    }
  }
};

// Lines of a (m_a + 1,) and of b (m_b + 1,) in any order, indices of b below n_b. The index type
// holds the products of sizes and of entries. O(m_a m_b + result) time; nothing but the result is
// allocated.
std::tuple<Tensor, Tensor, Tensor> kron_lines_op(const Tensor& ptr_a, const Tensor& idx_a,
                                                 const Tensor& ptr_b, const Tensor& idx_b,
                                                 int64_t n_b) {
  check_view(ptr_a, idx_a, std::nullopt);
  check_view(ptr_b, idx_b, std::nullopt);
  check_tensor(ptr_b, 1, ptr_a.scalar_type(), "ptr_b");
  const int64_t m_a = ptr_a.size(0) - 1, m_b = ptr_b.size(0) - 1;
  const int64_t total = idx_a.size(0) * idx_b.size(0);
  check_fits(ptr_a.scalar_type(), total);
  Tensor ptr = empty(ptr_a, {m_a * m_b + 1}), idx = empty(ptr_a, {total});
  Tensor entry = empty(ptr_a, {total});
  dispatch_index(ptr_a.scalar_type(), [&]<class index_t>() {
    const Kron<index_t> product{
        .ptr_a = data<index_t>(ptr_a),
        .idx_a = data<index_t>(idx_a),
        .ptr_b = data<index_t>(ptr_b),
        .idx_b = data<index_t>(idx_b),
        .m_a = m_a,
        .m_b = m_b,
        .nse_b = idx_b.size(0),
        .n_b = n_b,
        .ptr = mutable_data<index_t>(ptr),
        .idx = mutable_data<index_t>(idx),
        .entry = mutable_data<index_t>(entry),
    };
    product.write_pointers();
    parallel_rows(product.ptr, m_a * m_b, 2,
                  [&](int64_t first, int64_t last) { product.fill(first, last); });
  });
  return {ptr, idx, entry};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) { m.impl("kron_lines", SPGRAD_BOX(&kron_lines_op)); }

}  // namespace spgrad
