// Random numbers that are a function of a key, a line and a draw.
#pragma once

#include <bit>
#include <cstdint>

#include "common/targets.h"

namespace spgrad {

// splitmix64 (Steele, Lea and Flood 2014).
inline constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

SPGRAD_INLINE uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// The numbers of one line. Draw j is a function of j alone: the thread and the order of calls do
// not matter.
class Draws {
 public:
  Draws(int64_t key, int64_t line)
      : start_(mixed(mixed(static_cast<uint64_t>(key)) + static_cast<uint64_t>(line) * kGolden)) {}

  // 64 bits.
  SPGRAD_INLINE uint64_t operator()(int64_t draw) const {
    return mixed(start_ + (static_cast<uint64_t>(draw) + 1) * kGolden);
  }

  // An integer in [0, bound).
  SPGRAD_INLINE int64_t below(int64_t draw, int64_t bound) const {
    const auto product =
        static_cast<unsigned __int128>((*this)(draw)) * static_cast<uint64_t>(bound);
    return static_cast<int64_t>(product >> 64);
  }

 private:
  uint64_t start_;
};

// -log(u) for 0 < u <= 1. The file that includes this header is compiled without fused
// multiply-adds, so the reference in torch computes the same bits.
SPGRAD_INLINE double minus_log(double u) {
  constexpr int kTerms = 10;
  const auto bits = std::bit_cast<uint64_t>(u);
  auto exponent = static_cast<double>(static_cast<int64_t>(bits >> 52) - 1023);
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    exponent += 1;
  }
  const double s = (m - 1) / (m + 1), square = s * s;
  double series = 1.0 / (2 * kTerms - 1);
  for (int k = kTerms - 2; k >= 0; --k) series = series * square + 1.0 / (2 * k + 1);
  return -(exponent * 0.6931471805599453 + (2 * s) * series);
}

}  // namespace spgrad
