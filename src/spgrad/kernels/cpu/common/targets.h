// Compiles code in several versions, for processors that the build does not know. The right
// version is chosen at run time.
#pragma once

#include <type_traits>

// A build for one machine defines SPGRAD_REGISTERS, the bytes of its vector registers: 16, 32
// (AVX2) or 64 (AVX-512). It has the code for this processor that a build for every machine has,
// and takes half as long.

// SPGRAD_CLONES on a function compiles it for three processors, and the loader picks one: the
// build needs no -march and runs everywhere. The functions that it calls must be inlined into each
// copy. "flatten" does that, and SPGRAD_INLINE makes sure of it where it matters. A lambda that is
// not inlined is compiled once, for the oldest processor, so a lambda must not contain hot loops.
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && defined(__x86_64__) && \
    defined(__GLIBC__) && !defined(SPGRAD_PLAIN)
#if !defined(SPGRAD_REGISTERS)
#define SPGRAD_CLONES \
  __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4"), flatten))
#elif SPGRAD_REGISTERS == 64
#define SPGRAD_CLONES __attribute__((target("arch=x86-64-v4"), flatten))
#elif SPGRAD_REGISTERS == 32
#define SPGRAD_CLONES __attribute__((target("arch=x86-64-v3"), flatten))
#else
#define SPGRAD_CLONES __attribute__((flatten))
#endif
#else
#define SPGRAD_CLONES
#endif
#ifdef SPGRAD_PLAIN  // a build for tests, see below: what is inlined is checked in each place
#define SPGRAD_INLINE inline
#else
#define SPGRAD_INLINE inline __attribute__((always_inline))
#endif

// Whether there is code for registers of 32 and 64 bytes. "flatten" is an attribute of GCC: Clang
// compiles the functions that run_avx512 below calls for the processor of the build, and refuses
// wide registers in them.
#if defined(__x86_64__) && !defined(__clang__)
#define SPGRAD_WIDE 1
#else
#define SPGRAD_WIDE 0
#endif

namespace spgrad {

// Keeps the compiler from fusing a product with the sum that uses it, which would round once
// instead of twice.
template <class T>
SPGRAD_INLINE void keep_rounded(T& product) {
#if defined(__x86_64__)
  if constexpr (SPGRAD_WIDE || std::is_floating_point_v<T> || sizeof(T) == 16) {
    asm("" : "+x"(product));
  } else {  // Clang puts vectors of another size into no register of the build
    asm("" : "+m"(product));
  }
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#else
  volatile T rounded = product;
  product = rounded;
#endif
}

#if SPGRAD_WIDE
#ifdef SPGRAD_PLAIN
// A build for tests is compiled for registers of SPGRAD_REGISTERS as a whole. It takes a third of
// the time.
template <int kBytes, class F>
void with_registers(const F& f) {
  f.template operator()<kBytes>();
}
#else
template <class F>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c,popcnt,bmi,bmi2"),
               flatten)) void run_avx512(const F& f) {
  f.template operator()<64>();
}

template <class F>
__attribute__((target("avx2,fma,f16c,popcnt,bmi,bmi2"), flatten)) void run_avx2(const F& f) {
  f.template operator()<32>();
}

// Calls f.operator()<kBytes>(), a function of its own that is compiled for registers of kBytes.
template <int kBytes, class F>
void with_registers(const F& f) {
  if constexpr (kBytes == 64) {
    run_avx512(f);
  } else if constexpr (kBytes == 32) {
    run_avx2(f);
  } else {
    f.template operator()<16>();
  }
}
#endif

// SPGRAD_EACH_WIDTH(of) expands the macro `of` for each width that there is code for.
#ifdef SPGRAD_REGISTERS
#define SPGRAD_EACH_WIDTH(of) of(SPGRAD_REGISTERS)
inline int vector_bytes() { return SPGRAD_REGISTERS; }

template <class F>
void for_width(const F& f) {
  f.template operator()<SPGRAD_REGISTERS>();
}
#else
#define SPGRAD_EACH_WIDTH(of) of(16) of(32) of(64)

// The bytes of the widest vector register of this processor for which there is code.
inline int vector_bytes() {
  static const int bytes = [] {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("f16c") || !__builtin_cpu_supports("bmi2")) {
      return 16;
    }
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vl")
               ? 64
               : 32;
  }();
  return bytes;
}

// Calls f.operator()<kBytes>() for the widest vector registers of this processor, which is looked
// up at run time. f is compiled for every processor: it may choose a loop, but has none itself.
template <class F>
void for_width(const F& f) {
  switch (vector_bytes()) {
    case 64:
      return f.template operator()<64>();
    case 32:
      return f.template operator()<32>();
    default:
      return f.template operator()<16>();
  }
}
#endif
#else
#define SPGRAD_EACH_WIDTH(of) of(16)
inline int vector_bytes() { return 16; }

template <class F>
void for_width(const F& f) {
  f.template operator()<16>();
}
template <int kBytes, class F>
void with_registers(const F& f) {
  f.template operator()<kBytes>();
}
#endif

// Calls f.operator()<kBytes>() compiled for the widest vector registers of this processor.
// SPGRAD_CLONES does not work for code with explicit vectors: a vector that is wider than a
// register ends up in memory, so such code must know the width.
template <class F>
void with_vectors(const F& f) {
  for_width([&]<int kBytes>() { with_registers<kBytes>(f); });
}

}  // namespace spgrad
