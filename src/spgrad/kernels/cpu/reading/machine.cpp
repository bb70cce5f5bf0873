// What the processor's caches hold. Contracts are in machine.h.
#include "reading/machine.h"

#if defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__unix__)
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>

#include "common/targets.h"

#if SPGRAD_WIDE
#include <cpuid.h>
#endif

namespace spgrad {
namespace {

#if defined(__APPLE__)
int64_t asked_of_the_system(const char* name) {
  int64_t bytes = 0;
  size_t size = sizeof(bytes);
  return sysctlbyname(name, &bytes, &size, nullptr, 0) == 0 ? bytes : 0;
}
const int64_t first = asked_of_the_system("hw.perflevel0.l1dcachesize");
const int64_t second = asked_of_the_system("hw.perflevel0.l2cachesize");
const int64_t third = asked_of_the_system("hw.l3cachesize");
#elif defined(_SC_LEVEL2_CACHE_SIZE)
const int64_t first = sysconf(_SC_LEVEL1_DCACHE_SIZE), second = sysconf(_SC_LEVEL2_CACHE_SIZE);

// Linux says which part of the third-level cache a core reaches. sysconf may add up those of all
// parts of a processor.
int64_t reached_by_a_core() {
  int64_t kilobytes = 0;
  if (std::FILE* const file = std::fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r")) {
    if (std::fscanf(file, "%" SCNd64 "K", &kilobytes) != 1) kilobytes = 0;
    std::fclose(file);
  }
  return kilobytes > 0 ? kilobytes << 10 : sysconf(_SC_LEVEL3_CACHE_SIZE);
}
const int64_t third = reached_by_a_core();
#else
constexpr int64_t first = 0, second = 0, third = 0;
#endif

std::atomic<int64_t> assumed = 0;

}  // namespace

int64_t near_bytes() {
  constexpr int64_t kUnknown = 1 << 20;
  const int64_t bytes = assumed.load(std::memory_order_relaxed);
  if (bytes > 0) return bytes;
  return second > 0 ? second : kUnknown;
}

int64_t nearest_bytes() {
  constexpr int64_t kUnknown = 32 << 10;
  return std::min(first > 0 ? first : kUnknown, near_bytes());
}

int64_t shared_bytes() {
  constexpr int64_t kUnknown = 32 << 20;
  const int64_t bytes = assumed.load(std::memory_order_relaxed);
  if (bytes > 0) return bytes;
  return std::max(third > 0 ? third : kUnknown, near_bytes());
}

#if SPGRAD_WIDE
namespace {
// The function of CPUID by which AMD's processors describe the first-level cache and its TLB.
int64_t pages_by_cpuid() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool answers = __builtin_cpu_is("amd") && __get_cpuid(0x80000005, &a, &b, &c, &d) != 0;
  return answers ? b >> 16 & 0xff : 0;
}
}  // namespace
const bool gathers_fast = vector_bytes() == 64 && !__builtin_cpu_is("amd");
const bool fetches_twice = __builtin_cpu_is("amd");
bool shared_is_far() { return __builtin_cpu_is("intel"); }
double far_cost() { return __builtin_cpu_is("amd") ? 1 : 18; }
int64_t nearest_pages() {
  static const int64_t pages = pages_by_cpuid();
  return pages;
}
#else
const bool gathers_fast = false, fetches_twice = false;
bool shared_is_far() { return false; }
double far_cost() { return 18; }
int64_t nearest_pages() { return 0; }
#endif

void assume_near_bytes(int64_t bytes) { assumed.store(bytes, std::memory_order_relaxed); }

}  // namespace spgrad
