// The gather limit: reads rows of x in the order of col and adds them, or their products with a row
// of g. No values, no result but one sum, so that it can be seen to be right.
//
// A row of k elements is `width` bytes, a multiple of a unit of registers. A tile is R units; the
// entries are taken in chunks, all tiles of a chunk before the next chunk. Rows of x are prefetched
// into the first-level cache `ahead` entries further on, and into the second-level cache `far`
// entries further on: col has that many more elements at its end.

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

template <typename T, int BYTES>
struct Plain {
  static constexpr int bytes = BYTES;
  typedef T Vec __attribute__((vector_size(BYTES)));
  typedef T Loose __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
  struct Acc {
    Vec v;
  };
  static Acc zero() { return {Vec{}}; }
  static Acc load(const char* p) { return {Vec(*reinterpret_cast<const Loose*>(p))}; }
  static Acc add(Acc a, Acc b) { return {a.v + b.v}; }
  static Acc madd(Acc a, Acc b, Acc c) { return {a.v + b.v * c.v}; }
  static double sum(Acc a) {
    double s = 0;
    for (int i = 0; i < int(BYTES / sizeof(T)); ++i) s += a.v[i];
    return s;
  }
};

// Two bfloat16 in 32 bits: the upper one is a float32 but for what stands below it.
template <int BYTES>
struct Halves {
  static constexpr int bytes = BYTES;
  typedef float Vec __attribute__((vector_size(BYTES)));
  typedef uint32_t Bits __attribute__((vector_size(BYTES)));
  typedef uint32_t Loose __attribute__((vector_size(BYTES), aligned(2), may_alias));
  struct Acc {
    Vec low, high;
  };
  static Acc zero() { return {Vec{}, Vec{}}; }
  static Acc load(const char* p) {
    Bits both = Bits(*reinterpret_cast<const Loose*>(p));
    return {Vec(both << 16), Vec(both & 0xffff0000u)};
  }
  static Acc add(Acc a, Acc b) { return {a.low + b.low, a.high + b.high}; }
  static Acc madd(Acc a, Acc b, Acc c) { return {a.low + b.low * c.low, a.high + b.high * c.high}; }
  static double sum(Acc a) {
    double s = 0;
    for (int i = 0; i < BYTES / 4; ++i) s += double(a.low[i]) + a.high[i];
    return s;
  }
};

struct Job {
  const int64_t* ptr;
  const void* col;
  const char* x;
  const char* g;  // null: the sum alone
  int64_t rows, entries, width;
  int64_t chunk;
  int ahead, far, regs, unroll, wide;
};

template <class Unit, int R, int U, bool DOT, class Index>
struct Tile {
  typedef typename Unit::Acc Acc;
  const Job& job;
  Acc total[R];

  explicit Tile(const Job& j) : job(j) {
    for (int r = 0; r < R; ++r) total[r] = Unit::zero();
  }

  // Entries from e to end, the first of them in row i; the tile begins `at` bytes into a row.
  void run(int64_t i, int64_t e, int64_t end, int64_t at) {
    const Index* col = static_cast<const Index*>(job.col);
    const char* x = job.x + at;
    const int64_t width = job.width;
    const int ahead = job.ahead, far = job.far;
    for (; e < end; ++i) {
      const int64_t stop = std::min(job.ptr[i + 1], end);
      Acc factor[R], acc[U][R];
      for (int r = 0; r < R; ++r) {
        if (DOT) factor[r] = Unit::load(job.g + i * width + at + r * Unit::bytes);
        for (int u = 0; u < U; ++u) acc[u][r] = Unit::zero();
      }
      for (; e + U <= stop; e += U)
        for (int u = 0; u < U; ++u) one(acc[u], factor, x, col, e + u, width, ahead, far);
      for (; e < stop; ++e) one(acc[0], factor, x, col, e, width, ahead, far);
      for (int u = 0; u < U; ++u)
        for (int r = 0; r < R; ++r) total[r] = Unit::add(total[r], acc[u][r]);
    }
  }

  static inline __attribute__((always_inline)) void one(Acc* acc, const Acc* factor, const char* x,
                                                        const Index* col, int64_t e, int64_t width,
                                                        int ahead, int far) {
    const char* row = x + int64_t(col[e]) * width;
    if (ahead) {
      const char* next = x + int64_t(col[e + ahead]) * width;
      for (int b = 0; b < R * Unit::bytes; b += 64) __builtin_prefetch(next + b);
    }
    if (far) {
      const char* later = x + int64_t(col[e + far]) * width;
      for (int b = 0; b < R * Unit::bytes; b += 64) __builtin_prefetch(later + b, 0, 2);
    }
    for (int r = 0; r < R; ++r) {
      const Acc v = Unit::load(row + r * Unit::bytes);
      acc[r] = DOT ? Unit::madd(acc[r], v, factor[r]) : Unit::add(acc[r], v);
    }
  }
};

template <class Unit, int R, int U, bool DOT, class Index>
double share(const Job& job, int64_t first, int64_t last) {
  Tile<Unit, R, U, DOT, Index> tile(job);
  const int64_t* ptr = job.ptr;
  int64_t i = std::upper_bound(ptr, ptr + job.rows + 1, first) - ptr - 1;
  for (int64_t e = first; e < last; e += job.chunk) {
    const int64_t end = std::min(e + job.chunk, last);
    while (ptr[i + 1] <= e) ++i;
    for (int64_t at = 0; at < job.width; at += R * Unit::bytes) tile.run(i, e, end, at);
  }
  double s = 0;
  for (int r = 0; r < R; ++r) s += Unit::sum(tile.total[r]);
  return s;
}

typedef double (*Share)(const Job&, int64_t, int64_t);

template <class Unit, int R, int U>
Share typed(const Job& job) {
  if (job.wide) return job.g ? share<Unit, R, U, true, int64_t> : share<Unit, R, U, false, int64_t>;
  return job.g ? share<Unit, R, U, true, int32_t> : share<Unit, R, U, false, int32_t>;
}

template <class Unit>
Share blocked(const Job& job) {
  switch (job.regs) {
    case 1:
      return job.unroll > 1 ? typed<Unit, 1, 4>(job) : typed<Unit, 1, 1>(job);
    case 2:
      return job.unroll > 1 ? typed<Unit, 2, 4>(job) : typed<Unit, 2, 1>(job);
    case 4:
      return job.unroll > 1 ? typed<Unit, 4, 2>(job) : typed<Unit, 4, 1>(job);
    case 8:
      return typed<Unit, 8, 1>(job);
    default:
      return nullptr;
  }
}

template <class Unit>
Share narrow(const Job& job) {  // a row is less than a register
  return job.unroll > 1 ? typed<Unit, 1, 4>(job) : typed<Unit, 1, 1>(job);
}

Share chosen(const Job& job, int kind, int unit) {
  switch (kind * 100 + unit) {
    case 64:
      return blocked<Plain<float, 64>>(job);
    case 32:
      return narrow<Plain<float, 32>>(job);
    case 16:
      return narrow<Plain<float, 16>>(job);
    case 8:
      return narrow<Plain<float, 8>>(job);
    case 4:
      return narrow<Plain<float, 4>>(job);
    case 164:
      return blocked<Plain<double, 64>>(job);
    case 132:
      return narrow<Plain<double, 32>>(job);
    case 116:
      return narrow<Plain<double, 16>>(job);
    case 108:
      return narrow<Plain<double, 8>>(job);
    case 264:
      return blocked<Halves<64>>(job);
    case 232:
      return narrow<Halves<32>>(job);
    case 216:
      return narrow<Halves<16>>(job);
    default:
      return nullptr;
  }
}

}  // namespace

// kind: 0 float32, 1 float64, 2 bfloat16. Gives the sum, or NaN for a shape that there is no code
// for.
extern "C" double gather_limit(const int64_t* ptr, const void* col, int wide, const void* x,
                               const void* g, int64_t rows, int64_t entries, int64_t width,
                               int kind, int unit, int regs, int unroll, int ahead, int far,
                               int64_t chunk, int threads) {
  const Job job{ptr,
                col,
                static_cast<const char*>(x),
                static_cast<const char*>(g),
                rows,
                entries,
                width,
                chunk,
                ahead,
                far,
                regs,
                unroll,
                wide};
  const Share run = chosen(job, kind, unit);
  if (!run) return __builtin_nan("");
  double sum = 0;
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : sum)
  for (int t = 0; t < threads; ++t)
    sum += run(job, entries * t / threads, entries * (t + 1) / threads);
  return sum;
}
