// How local a pattern is. Contracts are in locality.h.
#include "reading/locality.h"

#include <algorithm>
#include <bit>
#include <mutex>

#include "common/dispatch.h"
#include "common/memory.h"

namespace spgrad {
namespace {

// Only one in kSampled columns is counted: the columns whose hash ends in zero bits.
constexpr uint64_t kSampled = 16;
constexpr int64_t kLongest = int64_t{1} << (Footprint::kSizes - 1), kStretches = 3;

uint64_t hash(uint64_t column) {
  column *= 0x9e3779b97f4a7c15u;
  return column ^ (column >> 32);
}

// Columns seen so far, in a table with open addressing.
class Seen {
 public:
  explicit Seen(int64_t most) : places_(std::bit_ceil(static_cast<uint64_t>(2 * most)), kNone) {}

  // Whether `column`, with this hash, is new.
  bool add(int64_t column, uint64_t hashed) {
    const uint64_t mask = places_.size() - 1;
    for (uint64_t place = hashed / kSampled & mask;; place = (place + 1) & mask) {
      if (places_[place] == column) return false;
      if (places_[place] != kNone) continue;
      if (++count_ > places_.size() / 2) return false;  // an unlucky hash: the rest is not counted
      places_[place] = column;
      return true;
    }
  }

 private:
  static constexpr int64_t kNone = -1;
  List<int64_t> places_;
  size_t count_ = 0;
};

template <class index_t>
Footprint measure(const index_t* idx, int64_t nse) {
  Footprint found;
  const int64_t length = std::min(nse, kLongest);
  const int64_t stretches = nse > 2 * length ? kStretches : 1;
  for (int64_t size = 1; size <= length && found.sizes < Footprint::kSizes; size *= 2) {
    ++found.sizes;
  }
  for (int64_t stretch = 0; stretch < stretches; ++stretch) {
    const int64_t first = stretches == 1 ? 0 : (nse - length) / (stretches - 1) * stretch;
    Seen seen(std::max<int64_t>(length / 8, 64));
    int64_t distinct = 0, p = 0;
    for (int size = 0; size < found.sizes; ++size) {
      for (; p < int64_t{1} << size; ++p) {
        const auto column = static_cast<int64_t>(idx[first + p]);
        const uint64_t hashed = hash(column);
        if (hashed % kSampled == 0) distinct += seen.add(column, hashed);
      }
      found.distinct[size] += static_cast<double>(distinct * kSampled) / stretches;
    }
  }
  return found;
}

// The footprints of the last patterns.
struct Kept {
  const void* idx = nullptr;
  int64_t nse = 0;
  uint64_t some = 0;  // of the elements, joined
  Footprint footprint;
};

template <class index_t>
uint64_t some_of(const index_t* idx, int64_t nse) {
  constexpr int64_t kSome = 8;
  uint64_t joined = 0;
  for (int64_t i = 0; i < kSome; ++i) {
    joined = hash(joined + static_cast<uint64_t>(idx[(nse - 1) * i / (kSome - 1)]));
  }
  return joined;
}

std::mutex lock;
std::array<Kept, 64> kept;
size_t next = 0;

}  // namespace

double Footprint::misses(double rows) const {
  double ratio = 0;
  for (int size = 1; size < sizes; ++size) {
    const double window = static_cast<double>(int64_t{1} << (size - 1));
    ratio = (distinct[size] - distinct[size - 1]) / window;
    if (distinct[size] > rows) break;
  }
  return std::clamp(ratio, 0.0, 1.0);
}

Footprint footprint_of(const Tensor& idx) {
  Footprint found;
  const int64_t nse = idx.numel();
  if (nse == 0) return found;
  dispatch_index(idx.scalar_type(), [&]<class index_t>() {
    const index_t* const columns = data<index_t>(idx);
    const Kept wanted{.idx = columns, .nse = nse, .some = some_of(columns, nse), .footprint = {}};
    const auto same = [&](const Kept& one) {
      return one.idx == wanted.idx && one.nse == wanted.nse && one.some == wanted.some;
    };
    {
      const std::scoped_lock held(lock);
      const auto one = std::find_if(kept.begin(), kept.end(), same);
      if (one != kept.end()) {
        found = one->footprint;
        return;
      }
    }
    found = measure(columns, nse);
    const std::scoped_lock held(lock);
    kept[next] = wanted;
    kept[next].footprint = found;
    next = (next + 1) % kept.size();
  });
  return found;
}

}  // namespace spgrad
