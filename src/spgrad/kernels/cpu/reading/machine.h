// What the processor's caches hold.
#pragma once

#include <cstdint>

namespace spgrad {

// Bytes of the second-level cache, the largest that a core has to itself, asked of the system when
// the library is loaded; 1 MB where it does not say. Kernels choose how they read memory by it,
// never what they compute.
int64_t near_bytes();

// From now on, kernels choose as if the second-level cache had so many bytes; 0 takes the
// machine's own again. For tests and benchmarks.
void assume_near_bytes(int64_t bytes);

// Whether an instruction that gathers sixteen numbers takes less time than sixteen loads. AMD's
// processors take gathers apart into more instructions than the loads are.
bool gathers_fast();

}  // namespace spgrad
