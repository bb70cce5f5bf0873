// Transposes a dense matrix. The contract is in transpose_dense.h.
#include "shapes/transpose_dense.h"

#include <algorithm>
#include <cstring>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/lanes.h"
#include "common/threads.h"

namespace spgrad {
namespace {

constexpr int64_t kBlock = 64;  // rows and columns whose cache lines stay cached while read

// x (n, m) and out (m, n), with `x_row` and `out_row` elements from one row to the next.
template <class T>
struct Transposed {
  const T* x;
  T* out;
  int64_t n, m, x_row, out_row;
};

// A square of kLanes rows and columns, in registers. Each round interleaves row i with row
// i + kLanes / 2; after log2(kLanes) rounds rows have become columns.
template <int kLanes, class T>
SPGRAD_INLINE void transpose_square(const Transposed<T>& a, int64_t i, int64_t j) {
  Vector<T, kLanes> rows[kLanes], mixed[kLanes];
  const auto low = [](int l) { return l % 2 * kLanes + l / 2; };
  const auto high = [](int l) { return l % 2 * kLanes + kLanes / 2 + l / 2; };
#pragma GCC unroll 32
  for (int r = 0; r < kLanes; ++r)
    std::memcpy(&rows[r], a.x + (i + r) * a.x_row + j, sizeof(rows[r]));
#pragma GCC unroll 8
  for (int round = 1; round < kLanes; round *= 2) {
#pragma GCC unroll 32
    for (int r = 0; r < kLanes / 2; ++r) {
      mixed[2 * r] = shuffle<kLanes>(rows[r], rows[r + kLanes / 2], low);
      mixed[2 * r + 1] = shuffle<kLanes>(rows[r], rows[r + kLanes / 2], high);
    }
#pragma GCC unroll 32
    for (int r = 0; r < kLanes; ++r) rows[r] = mixed[r];
  }
#pragma GCC unroll 32
  for (int r = 0; r < kLanes; ++r) {
    std::memcpy(a.out + (j + r) * a.out_row + i, &rows[r], sizeof(rows[r]));
  }
}

// Rows [i, i_end) and columns [j, j_end), at most kBlock of each.
template <int kLanes, class T>
SPGRAD_INLINE void transpose_block(const Transposed<T>& a, int64_t i, int64_t i_end, int64_t j,
                                   int64_t j_end) {
  int64_t whole = i;
  if constexpr (kLanes > 1) {
    const int64_t columns = j + (j_end - j) / kLanes * kLanes;
    for (; whole + kLanes <= i_end; whole += kLanes) {
      for (int64_t c = j; c < columns; c += kLanes) transpose_square<kLanes>(a, whole, c);
      for (int64_t c = columns; c < j_end; ++c) {
        for (int64_t r = whole; r < whole + kLanes; ++r)
          a.out[c * a.out_row + r] = a.x[r * a.x_row + c];
      }
    }
  }
  for (int64_t c = j; c < j_end; ++c) {
    for (int64_t r = whole; r < i_end; ++r) a.out[c * a.out_row + r] = a.x[r * a.x_row + c];
  }
}

}  // namespace

Tensor transposed(const Tensor& x, int64_t columns, int64_t room) {
  const int64_t n = x.size(0);
  Tensor out = empty(x, {columns, room});
  if (room == 0) return out;
  dispatch_size(x.element_size(), [&]<class T>() {
    const Transposed<T> a{data<T>(x), mutable_data<T>(out), n, columns, x.size(1), room};
    const auto bands = [&](int64_t first, int64_t last) {
      with_vectors([&]<int kBytes>() {
        constexpr int kFew = std::min(kBytes, 32) / int{sizeof(T)};
        constexpr int kLanes = std::is_same_v<T, WordPair> ? 1 : std::min(kFew, 16);
        for (int64_t band = first; band < last; ++band) {
          const int64_t j = band * kBlock, end = std::min(j + kBlock, columns);
          for (int64_t i = 0; i < n; i += kBlock) {
            transpose_block<kLanes>(a, i, std::min(i + kBlock, n), j, end);
          }
        }
      });
      if (room == n) return;
      for (int64_t j = first * kBlock; j < std::min(last * kBlock, columns); ++j) {
        std::memset(static_cast<void*>(a.out + j * room + n), 0, (room - n) * sizeof(T));
      }
    };
    parallel_entries((columns + kBlock - 1) / kBlock, room * kBlock, bands);
  });
  return out;
}

namespace {

Tensor transpose_dense(const Tensor& x) {
  check_tensor(x, 2, x.scalar_type(), "x");
  return transposed(x, x.size(1), x.size(0));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("transpose_dense", SPGRAD_BOX(&transpose_dense));
}

}  // namespace spgrad
