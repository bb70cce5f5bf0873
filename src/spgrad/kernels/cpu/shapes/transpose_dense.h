// The transpose of a dense matrix.
#pragma once

#include <cstdint>

#include "common/memory.h"

namespace spgrad {

// The transpose of the first `columns` columns of x (n, m): a new tensor (columns, room) with room
// >= n. The elements of a row behind the first n are zero. x is contiguous, of any dtype.
// O(columns room) time, and no memory but the result. Each thread gets bands of columns of x.
Tensor transposed(const Tensor& x, int64_t columns, int64_t room);

}  // namespace spgrad
