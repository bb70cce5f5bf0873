// What the processor's caches hold.
#pragma once

#include <cstdint>

namespace spgrad {

// Bytes of the second-level cache, which is the largest cache that belongs to one core. The
// library asks the system for the size when it is loaded, and assumes 1 MB if the system does not
// say. This size decides how kernels read memory, never what they compute.
int64_t near_bytes();

// Bytes of the first-level cache for data, 32 KB if the system does not say. Not more than
// near_bytes().
int64_t nearest_bytes();

// Bytes of the largest cache of the processor, which its cores share; 32 MB if the system does not
// say. Not less than near_bytes(). What is larger comes from memory.
int64_t shared_bytes();

// What it costs to read a row that no cache of the core holds, as a multiple of the cost of one
// that the second-level cache holds and the first does not, beyond what every row costs. By
// measurement: about 1 on AMD's processors, whose next cache is near; on others far more, and 18 is
// assumed.
double far_cost();

// Whether columns and values that come from the shared cache are read like those from memory,
// because the processor does not load them far enough ahead. By measurement so on an Intel Xeon
// (the newer one of docs/performance.md), and assumed of Intel's other processors; not so on AMD's.
bool shared_is_far();

// How many pages the first-level TLB for data holds, if the processor says so, as AMD's do; 0 if
// it does not.
int64_t nearest_pages();

// Whether rows that come from beyond the second-level cache arrive sooner if they are prefetched
// into that cache first. By measurement so on an AMD EPYC with Zen 4, and assumed of AMD's other
// processors; elsewhere it was not measured, and is not assumed.
extern const bool fetches_twice;

// From now on, kernels assume that the second-level cache has `bytes` bytes, and that no other
// cache is larger; 0 restores the sizes that the machine has. For tests and benchmarks.
void assume_near_bytes(int64_t bytes);

// Whether an instruction that gathers sixteen numbers takes less time than sixteen loads. AMD's
// processors split a gather into more operations than sixteen loads.
extern const bool gathers_fast;

}  // namespace spgrad
