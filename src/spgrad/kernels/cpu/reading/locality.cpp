// How local a pattern is. Contracts are in locality.h.
#include "reading/locality.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <utility>

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

// Where each column was seen last, in a table with open addressing.
class Seen {
 public:
  explicit Seen(int64_t most) : places_(std::bit_ceil(static_cast<uint64_t>(2 * most))) {}

  // The entry that had `column`, with this hash, before the entry `now`; kNone if none had.
  int64_t last(int64_t column, uint64_t hashed, int64_t now) {
    const uint64_t mask = places_.size() - 1;
    for (uint64_t place = hashed / kSampled & mask;; place = (place + 1) & mask) {
      Place& at = places_[place];
      if (at.column == column) return std::exchange(at.entry, now);
      if (at.column != kNone) continue;
      if (2 * count_ > places_.size()) return kNone;  // an unlucky hash: the rest is not kept
      at = {.column = column, .entry = now};
      ++count_;
      return kNone;
    }
  }

  static constexpr int64_t kNone = -1;

 private:
  struct Place {
    int64_t column = kNone, entry = 0;
  };
  List<Place> places_;
  size_t count_ = 0;
};

template <class index_t>
Footprint measure(const index_t* idx, int64_t nse) {
  Footprint found;
  const int64_t length = std::min(nse, kLongest);
  const int64_t stretches = nse > 2 * length ? kStretches : 1;
  // How many entries come 2^(j-1) < t <= 2^j entries after the entry before in their column.
  std::array<int64_t, Footprint::kSizes> after{};
  int64_t counted = 0;
  for (int64_t stretch = 0; stretch < stretches; ++stretch) {
    const int64_t first = stretches == 1 ? 0 : (nse - length) / (stretches - 1) * stretch;
    Seen seen(std::max<int64_t>(length / 8, 64));
    for (int64_t p = 0; p < length; ++p) {
      const auto column = static_cast<int64_t>(idx[first + p]);
      const uint64_t hashed = hash(column);
      if (hashed % kSampled != 0) continue;
      ++counted;
      const int64_t last = seen.last(column, hashed, p);
      if (last != Seen::kNone) ++after[std::bit_width(static_cast<uint64_t>(p - last - 1))];
    }
  }
  if (counted == 0) return found;
  double distinct = 1, longer = 1;
  for (int j = 0; j < Footprint::kSizes && int64_t{1} << j <= length; ++j) {
    const double before = longer;
    longer -= static_cast<double>(after[j]) / static_cast<double>(counted);
    // A further entry of a window is new if its column comes first there.
    if (j > 0) distinct += static_cast<double>(int64_t{1} << (j - 1)) * (before + longer) / 2;
    found.distinct[j] = distinct;
    found.later[j] = longer;
    ++found.sizes;
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
  if (sizes == 0) return 0;
  for (int j = 1; j < sizes; ++j) {
    if (distinct[j] <= rows) continue;
    const double part = std::max(rows - distinct[j - 1], 0.0) / (distinct[j] - distinct[j - 1]);
    return std::clamp(later[j - 1] + part * (later[j] - later[j - 1]), 0.0, 1.0);
  }
  return std::clamp(later[sizes - 1], 0.0, 1.0);
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
