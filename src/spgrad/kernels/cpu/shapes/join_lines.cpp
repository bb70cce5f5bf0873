// Joins the lines of several patterns, with their values.
#include <algorithm>
#include <tuple>
#include <vector>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/threads.h"

namespace spgrad {
namespace {

using Tensors = std::vector<Tensor>;
using Joined = std::tuple<Tensor, Tensor, Tensor>;

// One of the patterns, and what its indices are raised by. T has the size of a value.
template <class index_t, class T>
struct Part {
  const index_t *ptr, *idx;
  const T* val;  // null if values are not joined
  int64_t lines, nse;
  index_t shift;
};

template <class index_t, class T>
struct Out {
  index_t *ptr, *idx;
  T* val;
};

template <class index_t, class T>
List<Part<index_t, T>> parts_of(const Tensors& ptr, const Tensors& idx,
                                const std::vector<int64_t>& shift, const Tensors& val) {
  List<Part<index_t, T>> parts;
  for (size_t j = 0; j < ptr.size(); ++j) {
    parts.push_back({data<index_t>(ptr[j]), data<index_t>(idx[j]),
                     val.empty() ? nullptr : static_cast<const T*>(val[j].const_data_ptr()),
                     ptr[j].size(0) - 1, idx[j].size(0), static_cast<index_t>(shift[j])});
  }
  return parts;
}

// Line i of the result is line i of each part, one after the other. Lines are copied kTogether
// entries at a time: the last step of a line copies some entries beyond its end, and the next line
// overwrites them. So a short line takes no branch that depends on its length.
template <class index_t, class T>
void join_beside(const List<Part<index_t, T>>& parts, int64_t m, const Out<index_t, T>& out) {
  constexpr int64_t kTogether = 8;
  std::copy_n(parts[0].ptr, m + 1, out.ptr);
  for (size_t j = 1; j < parts.size(); ++j) {
    const index_t* const ptr = parts[j].ptr;
    for (int64_t i = 0; i <= m; ++i) out.ptr[i] += ptr[i];
  }
  parallel_rows(out.ptr, m, 1, [&](int64_t first, int64_t last) {
    const int64_t writable = out.ptr[last] - kTogether;
    int64_t q = out.ptr[first];
    for (int64_t i = first; i < last; ++i) {
      for (const Part<index_t, T>& part : parts) {
        int64_t p = part.ptr[i];
        const int64_t stop = part.ptr[i + 1], end = q + stop - p;
        if (p <= part.nse - kTogether && q <= writable) {
          do {
            for (int64_t l = 0; l < kTogether; ++l) out.idx[q + l] = part.idx[p + l] + part.shift;
            if (part.val != nullptr) std::copy_n(part.val + p, kTogether, out.val + q);
            p += kTogether;
            q += kTogether;
          } while (p < stop && p <= part.nse - kTogether && q <= writable);
        }
        for (; p < stop; ++p, ++q) {
          out.idx[q] = part.idx[p] + part.shift;
          if (part.val != nullptr) out.val[q] = part.val[p];
        }
        q = end;
      }
    }
  });
}

// The lines of each part, one part after the other.
template <class index_t, class T>
void join_behind(const List<Part<index_t, T>>& parts, const Out<index_t, T>& out) {
  int64_t line = 0;
  index_t entry = 0;
  out.ptr[0] = 0;
  for (const Part<index_t, T>& part : parts) {
    for (int64_t i = 1; i <= part.lines; ++i) out.ptr[line + i] = part.ptr[i] + entry;
    parallel_entries(part.nse, 1, [&](int64_t first, int64_t last) {
      const int64_t to = entry + first, count = last - first;
      for (int64_t p = 0; p < count; ++p) out.idx[to + p] = part.idx[first + p] + part.shift;
      if (part.val != nullptr) std::copy_n(part.val + first, count, out.val + to);
    });
    line += part.lines;
    entry += static_cast<index_t>(part.nse);
  }
}

// Returns the number of lines and of entries of the result.
std::tuple<int64_t, int64_t> check_parts(const Tensors& ptr, const Tensors& idx,
                                         const std::vector<int64_t>& shift, const Tensors& val,
                                         bool beside) {
  STD_TORCH_CHECK(!ptr.empty() && idx.size() == ptr.size() && shift.size() == ptr.size() &&
                      (val.empty() || val.size() == ptr.size()),
                  "spgrad: `ptr`, `idx`, `shift` and `val` have different lengths.");
  int64_t lines = 0, nse = 0;
  for (size_t j = 0; j < ptr.size(); ++j) {
    check_view(ptr[j], idx[j], std::nullopt);
    check_tensor(ptr[j], 1, ptr[0].scalar_type(), "ptr");
    if (beside) check_size(ptr[j], 0, ptr[0].size(0), "ptr");
    if (!val.empty()) {
      check_tensor(val[j], 1, val[0].scalar_type(), "val");
      check_size(val[j], 0, idx[j].size(0), "val");
    }
    dispatch_index(ptr[0].scalar_type(), [&]<class index_t>() {
      check_size(idx[j], 0, data<index_t>(ptr[j])[ptr[j].size(0) - 1], "idx");
    });
    lines += ptr[j].size(0) - 1;
    nse += idx[j].size(0);
  }
  check_fits(ptr[0].scalar_type(), nse);
  return {beside ? ptr[0].size(0) - 1 : lines, nse};
}

// Of parts j: ptr (m_j + 1,), idx (nse_j,), shift, val (nse_j,) or none at all. All m_j are equal
// if `beside`. O(lines + nse) time; nothing but the result is allocated.
Joined join_lines_op(const Tensors& ptr, const Tensors& idx, const std::vector<int64_t>& shift,
                     const Tensors& val, bool beside) {
  const auto [m, nse] = check_parts(ptr, idx, shift, val, beside);
  Tensor new_ptr = empty(ptr[0], {m + 1}), new_idx = empty(ptr[0], {nse});
  Tensor moved = val.empty() ? empty(ptr[0], {0}) : empty(val[0], {nse});
  dispatch_index(ptr[0].scalar_type(), [&]<class index_t>() {
    dispatch_size(moved.element_size(), [&]<class T>() {
      const auto parts = parts_of<index_t, T>(ptr, idx, shift, val);
      const Out<index_t, T> out{mutable_data<index_t>(new_ptr), mutable_data<index_t>(new_idx),
                                static_cast<T*>(moved.mutable_data_ptr())};
      if (beside) {
        join_beside(parts, m, out);
      } else {
        join_behind(parts, out);
      }
    });
  });
  return {new_ptr, new_idx, moved};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) { m.impl("join_lines", SPGRAD_BOX(&join_lines_op)); }

}  // namespace spgrad
