// What the processor's caches hold. Contracts are in machine.h.
#include "reading/machine.h"

#if defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__unix__)
#include <unistd.h>
#endif

#include <atomic>

#include "common/targets.h"

namespace spgrad {
namespace {

int64_t asked_of_the_system() {
  constexpr int64_t kUnknown = 1 << 20;
#if defined(__APPLE__)
  int64_t bytes = 0;
  size_t size = sizeof(bytes);
  if (sysctlbyname("hw.perflevel0.l2cachesize", &bytes, &size, nullptr, 0) == 0 && bytes > 0) {
    return bytes;
  }
#elif defined(_SC_LEVEL2_CACHE_SIZE)
  const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return bytes;
#endif
  return kUnknown;
}

const int64_t own = asked_of_the_system();
std::atomic<int64_t> assumed = 0;

}  // namespace

int64_t near_bytes() {
  const int64_t bytes = assumed.load(std::memory_order_relaxed);
  return bytes > 0 ? bytes : own;
}

#if SPGRAD_WIDE
const bool gathers_fast = vector_bytes() == 64 && !__builtin_cpu_is("amd");
#else
const bool gathers_fast = false;
#endif

void assume_near_bytes(int64_t bytes) { assumed.store(bytes, std::memory_order_relaxed); }

}  // namespace spgrad
