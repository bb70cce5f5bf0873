// Random walks on a graph.
#include <algorithm>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/threads.h"
#include "sampling/random.h"

namespace spgrad {
namespace {

// Proposals for a step before the weights of all neighbours are computed, and the random numbers of
// a step: an entry and a chance for each proposal, and a part of the sum of all weights.
constexpr int64_t kTries = 8, kDraws = 2 * kTries + 1;

// Walks that one thread takes side by side, so that their reads of memory overlap.
constexpr int64_t kTogether = 32;

double part_of_one(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

// The weights of a step from a node to its neighbours, as node2vec defines them.
template <class index_t>
struct SecondOrder {
  const index_t *ptr, *idx;
  double returning, distant, most;

  // Whether part * most, for a part of one, is below the weight. It searches the row of `before`
  // only if the weights of near and of distant nodes are on two sides of the part.
  bool accepts(double part, int64_t before, int64_t to) const {
    const double bound = part * most;
    if (to == before) return bound < returning;
    if (bound < std::min(1.0, distant)) return true;
    return bound < std::max(1.0, distant) && bound < weight(before, to);
  }

  double weight(int64_t before, int64_t to) const {
    if (to == before) return returning;
    const index_t *const begin = idx + ptr[before], *const end = idx + ptr[before + 1];
    const auto wanted = static_cast<index_t>(to);
    const index_t* const found = std::lower_bound(begin, end, wanted);
    return found != end && *found == wanted ? 1.0 : distant;
  }

  // The step from a row with the entries [begin, begin + count), of which `first` is proposed.
  int64_t step(int64_t before, int64_t begin, int64_t count, int64_t first, const Draws& draws,
               int64_t draw) const {
    int64_t to = first;
    for (int64_t i = 0; i < kTries; ++i) {
      if (i > 0) to = idx[begin + draws.below(draw + 2 * i, count)];
      if (accepts(part_of_one(draws(draw + 2 * i + 1)), before, to)) return to;
    }
    double sum = 0;
    for (int64_t j = begin; j < begin + count; ++j) sum += weight(before, idx[j]);
    const double part = part_of_one(draws(draw + 2 * kTries)) * sum;
    double running = 0;
    for (int64_t j = begin; j < begin + count - 1; ++j) {
      running += weight(before, idx[j]);
      if (running > part) return idx[j];
    }
    return idx[begin + count - 1];
  }
};

// Walks [first, last), at most kTogether, into out (walks, length + 1).
template <class index_t>
void walk_together(const SecondOrder<index_t>& steps, bool second, const int64_t* starts,
                   int64_t length, int64_t key, int64_t first, int64_t last, int64_t* out) {
  int64_t begin[kTogether], count[kTogether], at[kTogether];
  const int64_t walks = last - first, row = length + 1;
  int64_t* const mine = out + first * row;
  for (int64_t i = 0; i < walks; ++i) {
    mine[i * row] = starts[first + i];
    __builtin_prefetch(steps.ptr + starts[first + i]);
  }
  for (int64_t s = 0; s < length; ++s) {
    const int64_t draw = s * kDraws;
    for (int64_t i = 0; i < walks; ++i) {
      const int64_t now = mine[i * row + s];
      begin[i] = steps.ptr[now];
      count[i] = int64_t{steps.ptr[now + 1]} - begin[i];
      if (count[i] == 0) continue;
      at[i] = begin[i] + Draws(key, first + i).below(draw, count[i]);
      __builtin_prefetch(steps.idx + at[i]);
    }
    for (int64_t i = 0; i < walks; ++i) {
      int64_t* const now = mine + i * row + s;
      int64_t to = *now;
      if (count[i] > 0) {
        to = steps.idx[at[i]];
        if (second && s > 0) {
          to = steps.step(now[-1], begin[i], count[i], to, Draws(key, first + i), draw);
        }
      }
      now[1] = to;
      __builtin_prefetch(steps.ptr + to);
    }
  }
}

// starts (s,), as the reference describes them. O(s length) time for p = q = 1, and for others a
// search of a row for each proposal. The result does not depend on the number of threads.
Tensor random_walks_op(const Tensor& ptr, const Tensor& idx, const Tensor& starts, int64_t length,
                       double p, double q, int64_t key) {
  check_view(ptr, idx, std::nullopt);
  check_tensor(starts, 1, ScalarType::Long, "starts");
  const int64_t count = starts.size(0);
  Tensor walks = empty(starts, {count, length + 1});
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    const double returning = 1 / p, distant = 1 / q;
    const SecondOrder<index_t> steps{data<index_t>(ptr), data<index_t>(idx), returning, distant,
                                     std::max({returning, 1.0, distant})};
    const bool second = p != 1 || q != 1;
    const auto* const from = data<int64_t>(starts);
    auto* const out = mutable_data<int64_t>(walks);
    const int64_t cost = 64 * (length + 1);
    parallel_entries(count, cost, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += kTogether) {
        const int64_t to = std::min(i + kTogether, end);
        walk_together(steps, second, from, length, key, i, to, out);
      }
    });
  });
  return walks;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) { m.impl("random_walks", SPGRAD_BOX(&random_walks_op)); }

}  // namespace spgrad
