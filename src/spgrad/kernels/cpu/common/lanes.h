// Vectors of fixed width, with conversion of the element type in registers: what the matmul kernels
// hold their sums in. GCC and Clang lower any width to what the target has.
#pragma once

#include "common/dispatch.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace spgrad {

template <class T, int kLanes>
struct VectorOf {
  typedef T type __attribute__((vector_size(kLanes * sizeof(T))));
};
template <class T, int kLanes>
using Vector = typename VectorOf<T, kLanes>::type;

// What a lane holds, and how many lanes an element takes: complex numbers stay interleaved.
template <class T>
struct Lane {
  using type = accumulate_t<T>;
  static constexpr int count = 1;
};
template <class T>
struct Lane<Complex<T>> {
  using type = T;
  static constexpr int count = 2;
};
template <class T>
using lane_t = typename Lane<T>::type;

// kElements elements of T, widened.
template <class T, int kElements>
using Lanes = Vector<lane_t<T>, kElements * Lane<T>::count>;

// Elements that fill a register of kBytes.
template <class T, int kBytes>
inline constexpr int kFull = kBytes / (Lane<T>::count * sizeof(lane_t<T>));

// Calls f.operator()<kBytes>() compiled for the widest vector registers of this processor, found at
// run time. SPGRAD_CLONES would not do: a vector wider than a register ends up in memory, so the
// code itself must know the width.
#if defined(__x86_64__)
template <class F>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c,popcnt,bmi,bmi2"),
               flatten)) void run_avx512(const F& f) {
  f.template operator()<64>();
}

template <class F>
__attribute__((target("avx2,fma,f16c,popcnt,bmi,bmi2"), flatten)) void run_avx2(const F& f) {
  f.template operator()<32>();
}

// The bytes of a vector register, of those that there is code for.
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

#ifdef SPGRAD_ONE_WIDTH  // a build for tests takes a third of the time, and a processor with AVX2
template <class F>
void with_vectors(const F& f) {
  run_avx2(f);
}
#else
template <class F>
void with_vectors(const F& f) {
  switch (vector_bytes()) {
    case 64:
      return run_avx512(f);
    case 32:
      return run_avx2(f);
    default:
      return f.template operator()<16>();
  }
}
#endif
#else
inline int vector_bytes() { return 16; }

template <class F>
void with_vectors(const F& f) {
  f.template operator()<16>();
}
#endif

// Unsigned 8 or 16 bits widened to 32. GCC converts between vectors of different size by halves;
// the processor does it in one instruction, half floats included. Only AVX code uses eight elements
// or more.
template <int kElements, class T>
SPGRAD_INLINE void load_bits(const T* from, Vector<uint32_t, kElements>& out) {
  using Raw = std::conditional_t<sizeof(T) == 1, uint8_t, uint16_t>;
  Vector<Raw, kElements> raw;
  std::memcpy(&raw, from, sizeof(raw));
#if defined(__x86_64__)
  if constexpr (kElements >= 8 && sizeof(T) == 1) {
    asm("vpmovzxbd %1, %0" : "=v"(out) : "vm"(raw));
    return;
  } else if constexpr (kElements >= 8) {
    asm("vpmovzxwd %1, %0" : "=v"(out) : "vm"(raw));
    return;
  }
#endif
  out = __builtin_convertvector(raw, Vector<uint32_t, kElements>);
}

template <int kElements>
SPGRAD_INLINE void load_half(const Half* from, Vector<float, kElements>& out) {
#if defined(__x86_64__)
  if constexpr (kElements >= 8) {
    Vector<uint16_t, kElements> raw;
    std::memcpy(&raw, from, sizeof(raw));
    asm("vcvtph2ps %1, %0" : "=v"(out) : "vm"(raw));
    return;
  }
#endif
  Vector<uint32_t, kElements> bits;
  load_bits<kElements>(from, bits);
  float_from_half(bits, out);
}

// Integers may lose their sign here: the low bits of a sum of products do not depend on it.
template <int kElements, class T>
SPGRAD_INLINE void load(const T* from, Lanes<T, kElements>& out) {
  if constexpr (std::is_same_v<T, Half>) {
    load_half<kElements>(from, out);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    Vector<uint32_t, kElements> bits;
    load_bits<kElements>(from, bits);
    float_from_bfloat16(bits, out);
  } else if constexpr (sizeof(T) < sizeof(lane_t<T>)) {
    load_bits<kElements>(from, out);
  } else {
    std::memcpy(&out, from, sizeof(out));
  }
}

// One element, by code that may use registers of kBytes.
template <int kBytes, class T>
SPGRAD_INLINE accumulate_t<T> load_one(const T& from) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, Half> && kBytes >= 32) {
    const Vector<uint32_t, 4> raw{from.bits};
    Vector<float, 4> out;
    asm("vcvtph2ps %1, %0" : "=v"(out) : "v"(raw));
    return out[0];
  }
#endif
  return widen(from);
}

template <int kElements, class T>
SPGRAD_INLINE void store(const Lanes<T, kElements>& from, T* to) {
  if constexpr (sizeof(T) == sizeof(lane_t<T>) * Lane<T>::count) {
    std::memcpy(static_cast<void*>(to), &from, sizeof(from));
  } else if constexpr (std::is_integral_v<T>) {
    const auto raw = __builtin_convertvector(from, Vector<T, kElements>);
    std::memcpy(to, &raw, sizeof(raw));
  } else {
    Vector<uint32_t, kElements> bits;
    if constexpr (std::is_same_v<T, Half>) {
      half_from_float(from, bits);
    } else {
      bfloat16_from_float(from, bits);
    }
    const auto raw = __builtin_convertvector(bits, Vector<uint16_t, kElements>);
    std::memcpy(to, &raw, sizeof(raw));
  }
}

// The lanes of a and b side by side, reordered: lane l of the result is lane pick(l) of the two.
template <int kLanes, class V, class F>
SPGRAD_INLINE auto shuffle(const V& a, const V& b, F) {
  return [&]<int... kLane>(std::integer_sequence<int, kLane...>) {
    return __builtin_shufflevector(a, b, F()(kLane)...);
  }(std::make_integer_sequence<int, kLanes>());
}

// Hides how v came about: what combines the outcomes of two comparisons of 64-byte vectors, and be
// it a choice within a choice, GCC 12 does one element after the other.
template <class V>
SPGRAD_INLINE void opaque([[maybe_unused]] V& v) {
#if defined(__x86_64__)
  asm("" : "+v"(v));
#endif
}

// Between the elements of a loop that lie apart: GCC 12 would make vectors of them, element by
// element, which takes longer than all else.
SPGRAD_INLINE void one_by_one() { asm volatile("" ::: "memory"); }

// Joins the groups of four lanes in v.
template <class T, int kLanes, class Join>
SPGRAD_INLINE void join_groups(const Vector<T, kLanes>& v, Vector<T, 4>& out, const Join& join) {
  if constexpr (kLanes == 4) {
    out = v;
  } else {
    constexpr auto lower = [](int l) { return l; };
    constexpr auto upper = [](int l) { return l + kLanes / 2; };
    const Vector<T, kLanes / 2> half =
        join(shuffle<kLanes / 2>(v, v, lower), shuffle<kLanes / 2>(v, v, upper));
    join_groups<T, kLanes / 2>(half, out, join);
  }
}

// out[e] = all lanes of v[e] joined, neighbours first. Groups of four lanes are transposed in
// place, then joined: 13 instructions for sums of sixteen lanes, where summing each vector by
// halves takes 32.
template <class T, int kLanes, class Join>
SPGRAD_INLINE void join_lanes(const Vector<T, kLanes> (&v)[4], Vector<T, 4>& out,
                              const Join& join) {
  if constexpr (kLanes == 2) {
    for (int e = 0; e < 4; ++e) out[e] = join(T(v[e][0]), T(v[e][1]));
  } else {
    // Of each group of four, two lanes of one vector, then two of the other.
    constexpr auto even = [](int l) { return l % 4 / 2 * kLanes + l / 4 * 4 + l % 2 * 2; };
    constexpr auto odd = [](int l) { return l % 4 / 2 * kLanes + l / 4 * 4 + l % 2 * 2 + 1; };
    const auto pairs = [&](const Vector<T, kLanes>& a, const Vector<T, kLanes>& b) {
      return join(shuffle<kLanes>(a, b, even), shuffle<kLanes>(a, b, odd));
    };
    join_groups<T, kLanes>(pairs(pairs(v[0], v[1]), pairs(v[2], v[3])), out, join);
  }
}

struct Add {
  template <class V>
  SPGRAD_INLINE V operator()(const V& a, const V& b) const {
    return a + b;
  }
};

// out[e] = the sum of all lanes of v[e].
template <class T, int kLanes>
SPGRAD_INLINE void sum_lanes(const Vector<T, kLanes> (&v)[4], Vector<T, 4>& out) {
  join_lanes<T, kLanes>(v, out, Add());
}

// Writes whole registers past the caches where the address is aligned to them: a result larger than
// the cache would be read before it is written, and drive out what is read again.
template <int kElements, class T>
SPGRAD_INLINE void stream(const Lanes<T, kElements>& from, T* to) {
#if defined(__x86_64__)
  if constexpr (std::is_floating_point_v<T> && sizeof(from) >= 32) {
    asm("vmovntps %1, %0" : "=m"(*reinterpret_cast<Lanes<T, kElements>*>(to)) : "v"(from));
    return;
  }
#endif
  store<kElements>(from, to);
}

// Before another thread may read what was streamed.
inline void finish_streams() {
#if defined(__x86_64__)
  asm volatile("sfence" ::: "memory");
#endif
}

// True for results that `stream` is for: rows of whole cache lines, more than a cache holds that
// is not shared by many.
inline bool worth_streaming(const Tensor& y) {
  constexpr int64_t kLeast = 8 << 20, kLine = 64;
  const int64_t row = y.size(1) * static_cast<int64_t>(y.element_size());
  const auto address = reinterpret_cast<uintptr_t>(y.mutable_data_ptr());
  return row % kLine == 0 && address % kLine == 0 && y.size(0) * row >= kLeast;
}

// Bytes of rows of x, which has so many, to ask for before they are needed: none where the
// second-level cache holds all of x, since then the requests alone cost a tenth.
inline int64_t bytes_ahead(int64_t bytes) {
  constexpr int64_t kNear = 1 << 20, kAhead = 8 << 10;
  return bytes > kNear ? kAhead : 0;
}
inline int64_t bytes_ahead(const Tensor& x) {
  return bytes_ahead(x.numel() * static_cast<int64_t>(x.element_size()));
}

// The entries that so many bytes are, for `width` columns of T each.
template <class T>
SPGRAD_INLINE int64_t entries_ahead(int64_t bytes, int64_t width) {
  const int64_t row = width * static_cast<int64_t>(sizeof(T));
  return bytes == 0 ? 0 : std::clamp<int64_t>(bytes / row, 8, 64);
}

// Asks for columns [column, column + width) of the row of x that an entry some way after p needs.
template <class View>
SPGRAD_INLINE void prefetch_row(const View& a, int64_t p, int64_t ahead, int64_t column,
                                int64_t width) {
  constexpr int64_t kLine = 64 / sizeof(*a.x);
  const auto* row = a.row(std::min(p + ahead, a.nse - 1)) + column;
  for (int64_t j = 0; j < width; j += kLine) __builtin_prefetch(row + j);
}

// Asks for columns [column, column + width) of the rows of x that four entries will need, some
// entries after p: once for every row of the matrix, which is enough for short rows and costs
// nothing in long ones.
template <class View>
SPGRAD_INLINE void prefetch_rows(const View& a, int64_t p, int64_t column, int64_t width) {
  constexpr int64_t kAhead = 16, kLine = 64 / sizeof(*a.x);
  for (int64_t q = p + kAhead, end = std::min(q + 4, a.nse); q < end; ++q) {
    const auto* row = a.row(q) + column;
    for (int64_t j = 0; j < width; j += kLine) __builtin_prefetch(row + j);
  }
}

}  // namespace spgrad
