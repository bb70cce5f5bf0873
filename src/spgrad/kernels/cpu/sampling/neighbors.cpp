// Samples the entries of lines, and numbers the nodes that the samples reach.
#include <algorithm>
#include <atomic>
#include <bit>
#include <tuple>
#include <utility>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/threads.h"
#include "sampling/random.h"

namespace spgrad {
namespace {

// Lines by their numbers, and the entries that are drawn from each line.
template <class index_t>
struct Lines {
  const index_t* ptr;
  const int64_t* line;
  int64_t first, fanout, key;

  int64_t begin(int64_t i) const { return ptr[line[i]]; }
  int64_t count(int64_t i) const { return int64_t{ptr[line[i] + 1]} - ptr[line[i]]; }
  Draws draws(int64_t i) const { return Draws(key, first + i); }

  int64_t longest(int64_t from, int64_t to) const {
    int64_t most = 0;
    for (int64_t i = from; i < to; ++i) most = std::max(most, count(i));
    return most;
  }
};

// Writes count(i), which has to be a function of i alone, for each of `lines` lines into made[i +
// 1], and turns these counts into pointers. O(lines) time.
template <class index_t, class Count>
void write_made(int64_t lines, int64_t cost, index_t* made, ScalarType dtype, const Count& count) {
  auto counts = array<int64_t>(lines);
  int64_t* const each = counts.get();
  parallel_entries(lines, cost, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) each[i] = count(i);
  });
  int64_t total = 0;
  for (int64_t i = 0; i < lines; ++i) {
    made[i] = static_cast<index_t>(total);
    total += each[i];
  }
  check_fits(dtype, total);
  made[lines] = static_cast<index_t>(total);
}

// Floyd's algorithm: samples `fanout` of `count` entries, fanout < count, into out (fanout,). It
// looks up whether an entry was drawn: in a word of 64 bits if there are few entries, in the list
// of drawn entries if few are drawn, otherwise in `seen`, count bits that are zero before and
// after. O(fanout) time.
constexpr int64_t kFew = 32;
template <class index_t>
void draw_distinct(const Draws& draws, int64_t count, int64_t fanout, uint64_t* seen,
                   index_t* out) {
  uint64_t mask = 0;
  for (int64_t j = 0; j < fanout; ++j) {
    const int64_t last = count - fanout + j;
    int64_t at = draws.below(j, last + 1);
    if (count <= 64) {
      at = mask >> at & 1 ? last : at;
      mask |= uint64_t{1} << at;
    } else if (fanout <= kFew) {
      bool before = false;
      for (int64_t i = 0; i < j; ++i) before |= out[i] == static_cast<index_t>(at);
      at = before ? last : at;
    } else {
      at = seen[at / 64] >> (at % 64) & 1 ? last : at;
      seen[at / 64] |= uint64_t{1} << (at % 64);
    }
    out[j] = static_cast<index_t>(at);
  }
  if (count > 64 && fanout > kFew) {
    for (int64_t j = 0; j < fanout; ++j) seen[out[j] / 64] = 0;
  }
}

// Writes the sampled entries of the lines [from, to) to out, each as its distance from the
// beginning of its line.
template <class index_t>
void draw_uniform(const Lines<index_t>& lines, const index_t* made, int64_t from, int64_t to,
                  bool replace, index_t* out) {
  Array<uint64_t> seen;
  if (!replace && lines.fanout > kFew) seen = zeros<uint64_t>(lines.longest(from, to) / 64 + 1);
  for (int64_t i = from; i < to; ++i) {
    const int64_t count = lines.count(i), drawn = int64_t{made[i + 1]} - made[i];
    index_t* const mine = out + made[i];
    if (replace && lines.fanout >= 0) {
      const Draws draws = lines.draws(i);
      for (int64_t j = 0; j < drawn; ++j) mine[j] = static_cast<index_t>(draws.below(j, count));
    } else if (drawn < count) {
      draw_distinct(lines.draws(i), count, drawn, seen.get(), mine);
    } else {
      for (int64_t j = 0; j < drawn; ++j) mine[j] = static_cast<index_t>(j);
    }
  }
}

// Each entry with a weight has a clock, which rings at a time that is exponentially distributed
// with the weight as its rate. The entries whose clocks ring first are a sample without replacement
// (Efraimidis and Spirakis 2006). A heap keeps the first `drawn` entries. O(count + drawn
// log(drawn)) time on average.
template <class index_t, class weight_t>
void draw_clocks(const Draws& draws, const weight_t* weight, int64_t count, int64_t drawn,
                 std::pair<double, index_t>* heap, index_t* out) {
  int64_t kept = 0;
  for (int64_t j = 0; j < count; ++j) {
    if (!(weight[j] > 0)) continue;
    const double u = static_cast<double>((draws(j) >> 11) + 1) * 0x1p-53;
    // -log(u) >= 1 - u: the clocks of most entries of a long line ring too late, and need no
    // logarithm.
    constexpr double kRounding = 1 + 1e-6;
    if (kept == drawn && 1 - u > heap[0].first * static_cast<double>(weight[j]) * kRounding) {
      continue;
    }
    const std::pair clock(minus_log(u) / static_cast<double>(weight[j]), static_cast<index_t>(j));
    if (kept < drawn) {
      heap[kept++] = clock;
      std::push_heap(heap, heap + kept);
    } else if (clock < heap[0]) {
      std::pop_heap(heap, heap + kept);
      heap[kept - 1] = clock;
      std::push_heap(heap, heap + kept);
    }
  }
  std::sort_heap(heap, heap + kept);
  for (int64_t j = 0; j < kept; ++j) out[j] = heap[j].second;
}

// As draw_uniform, with weights (nse,).
template <class index_t, class weight_t>
void draw_weighted(const Lines<index_t>& lines, const weight_t* weight, const index_t* made,
                   int64_t from, int64_t to, bool replace, index_t* out) {
  const int64_t longest = lines.longest(from, to);
  auto sums = array<double>(replace ? longest : 0);
  auto heap = array<std::pair<double, index_t>>(replace ? 0 : std::min(longest, lines.fanout));
  for (int64_t i = from; i < to; ++i) {
    const int64_t count = lines.count(i), drawn = int64_t{made[i + 1]} - made[i];
    if (drawn == 0) continue;
    const weight_t* const mine = weight + lines.begin(i);
    const Draws draws = lines.draws(i);
    if (!replace) {
      draw_clocks(draws, mine, count, drawn, heap.get(), out + made[i]);
      continue;
    }
    double sum = 0;
    for (int64_t j = 0; j < count; ++j) sums[j] = sum += static_cast<double>(mine[j]);
    for (int64_t j = 0; j < drawn; ++j) {
      const double part = static_cast<double>(draws(j) >> 11) * 0x1p-53 * sum;
      const int64_t at = std::upper_bound(sums.get(), sums.get() + count, part) - sums.get();
      out[made[i] + j] = static_cast<index_t>(std::min(at, count - 1));
    }
  }
}

// The first entry of the lines whose weight is negative or not finite, -1 if there is none; writes
// how many weights of each line are not 0. O(entries of the lines) time.
template <class index_t, class weight_t>
int64_t count_weights(const Lines<index_t>& lines, const weight_t* weight, int64_t num_lines,
                      int64_t* positive) {
  std::atomic<int64_t> first_bad = INT64_MAX;
  parallel_entries(num_lines, 16, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const int64_t begin = lines.begin(i), count = lines.count(i);
      positive[i] = 0;
      for (int64_t j = begin; j < begin + count; ++j) {
        positive[i] += weight[j] > 0;
        if (weight[j] >= 0 && weight[j] <= std::numeric_limits<weight_t>::max()) continue;
        int64_t least = first_bad.load();
        while (j < least && !first_bad.compare_exchange_weak(least, j)) {
        }
      }
    }
  });
  return first_bad == INT64_MAX ? -1 : first_bad.load();
}

// Calls draw(from, to, out) on ranges of lines, then turns the numbers that it wrote into entries
// and indices.
template <class index_t, class Draw>
void draw_all(const Lines<index_t>& lines, const index_t* idx, const index_t* made,
              int64_t num_lines, int64_t cost, index_t* made_idx, index_t* entry,
              const Draw& draw) {
  parallel_rows(made, num_lines, cost, [&](int64_t first, int64_t last) {
    for_batches(made, first, last, int64_t{4096}, [&](int64_t from, int64_t to) {
      draw(from, to, entry);
      for (int64_t i = from; i < to; ++i) {
        const auto begin = static_cast<index_t>(lines.begin(i));
        for (int64_t q = made[i]; q < made[i + 1]; ++q) entry[q] += begin;
      }
      for (int64_t q = made[from]; q < made[to]; ++q) made_idx[q] = idx[entry[q]];
    });
  });
}

using Sample = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// lines (l,), as the reference describes them. O(l + n) time for n drawn entries without weights,
// and O(entries of the lines) with weights. The result does not depend on the number of threads.
Sample sample_lines_op(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& weight,
                       const Tensor& lines, int64_t first, int64_t fanout, bool replace,
                       int64_t key) {
  check_view(ptr, idx, std::nullopt);
  check_tensor(lines, 1, ScalarType::Long, "lines");
  const ScalarType dtype = ptr.scalar_type();
  const int64_t count = lines.size(0);
  Tensor made = empty(ptr, {count + 1}), bad = empty(lines, {1});
  *mutable_data<int64_t>(bad) = -1;
  Tensor made_idx = made, entry = made;
  dispatch_index(dtype, [&]<class index_t>() {
    const Lines<index_t> from{data<index_t>(ptr), data<int64_t>(lines), first, fanout, key};
    index_t* const starts = mutable_data<index_t>(made);
    const auto allocated = [&] {
      made_idx = empty(idx, {int64_t{starts[count]}});
      entry = empty(idx, {int64_t{starts[count]}});
    };
    const auto draw = [&](int64_t cost, const auto& some) {
      allocated();
      draw_all(from, data<index_t>(idx), starts, count, cost, mutable_data<index_t>(made_idx),
               mutable_data<index_t>(entry), some);
    };
    const auto drawn = [&](int64_t there) {
      if (fanout < 0) return there;
      return replace ? (there > 0 ? fanout : 0) : std::min(there, fanout);
    };
    if (!weight || fanout < 0) {
      write_made(count, 16, starts, dtype, [&](int64_t i) { return drawn(from.count(i)); });
      return draw(8, [&](int64_t a, int64_t b, index_t* out) {
        draw_uniform(from, starts, a, b, replace, out);
      });
    }
    check_tensor(*weight, 1, weight->scalar_type(), "weight");
    check_size(*weight, 0, idx.size(0), "weight");
    const auto weighted = [&]<class weight_t>() {
      const weight_t* const weights = data<weight_t>(*weight);
      auto positive = array<int64_t>(count);
      const int64_t wrong = count_weights(from, weights, count, positive.get());
      *mutable_data<int64_t>(bad) = wrong;
      if (wrong >= 0) std::fill_n(positive.get(), count, int64_t{0});
      write_made(count, 16, starts, dtype, [&](int64_t i) { return drawn(positive[i]); });
      draw(64, [&](int64_t a, int64_t b, index_t* out) {
        draw_weighted(from, weights, starts, a, b, replace, out);
      });
    };
    if (weight->scalar_type() == ScalarType::Float) return weighted.template operator()<float>();
    check_tensor(*weight, 1, ScalarType::Double, "weight");
    weighted.template operator()<double>();
  });
  return {made, made_idx, entry, bad};
}

// Numbers the nodes in the order in which they are asked for: open addressing in a table of at
// least 4/3 slots for each node.
template <class index_t>
class Numbers {
 public:
  Numbers(const Tensor& like, int64_t most)
      : bits_(std::bit_width(static_cast<uint64_t>(most + most / 3))),
        memory_(empty(like, {int64_t{2} << bits_})),
        slots_(mutable_data<index_t>(memory_)) {
    std::fill_n(slots_, int64_t{2} << bits_, index_t{-1});
  }

  SPGRAD_INLINE void prefetch(index_t node) const { __builtin_prefetch(slots_ + 2 * slot(node)); }

  // The number of a node. If the node has no number, it gets `next`.
  SPGRAD_INLINE index_t of(index_t node, index_t next) {
    uint64_t at = slot(node);
    while (slots_[2 * at] != node) {
      if (slots_[2 * at] < 0) {
        slots_[2 * at] = node;
        return slots_[2 * at + 1] = next;
      }
      at = (at + 1) & ((uint64_t{1} << bits_) - 1);
    }
    return slots_[2 * at + 1];
  }

 private:
  SPGRAD_INLINE uint64_t slot(index_t node) const {
    return bits_ == 0 ? 0 : static_cast<uint64_t>(node) * kGolden >> (64 - bits_);
  }

  int bits_;
  Tensor memory_;
  index_t* slots_;
};

// Orders the entries [begin, end) by idx; those of one idx keep their order. They are mostly in
// order: new nodes have new numbers.
template <class index_t>
void sort_line(int64_t begin, int64_t end, index_t* idx, index_t* entry) {
  constexpr int64_t kShort = 64;
  if (end - begin > kShort) {
    if (std::is_sorted(idx + begin, idx + end)) return;
    auto pairs = array<std::pair<index_t, index_t>>(end - begin);
    for (int64_t q = begin; q < end; ++q) pairs[q - begin] = {idx[q], entry[q]};
    std::stable_sort(pairs.get(), pairs.get() + (end - begin),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (int64_t q = begin; q < end; ++q) std::tie(idx[q], entry[q]) = pairs[q - begin];
    return;
  }
  for (int64_t q = begin + 1; q < end; ++q) {
    const index_t i = idx[q], e = entry[q];
    int64_t to = q;
    for (; to > begin && idx[to - 1] > i; --to) {
      idx[to] = idx[to - 1];
      entry[to] = entry[to - 1];
    }
    idx[to] = i;
    entry[to] = e;
  }
}

// nodes (s,), ptr (l + 1,), idx and entry (n,), none negative. O(s + n) time on average, and memory
// for about 3 (s + n) indices. One thread numbers the nodes, in order.
std::tuple<Tensor, Tensor, Tensor> relabel_lines_op(const Tensor& nodes, const Tensor& ptr,
                                                    const Tensor& idx, const Tensor& entry,
                                                    bool ascending) {
  check_view(ptr, idx, entry);
  check_tensor(nodes, 1, ptr.scalar_type(), "nodes");
  const int64_t s = nodes.size(0), n = idx.size(0);
  Tensor made = empty(idx, {n}), moved = empty(entry, {n}), names = nodes;
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    const index_t* const starts = data<index_t>(ptr);
    STD_TORCH_CHECK(starts[ptr.size(0) - 1] == n, "spgrad: `ptr` counts ", starts[ptr.size(0) - 1],
                    " entries, not ", n, ".");
    Numbers<index_t> numbers(idx, s + n);
    auto found = array<index_t>(s + n + 1);  // one more: writes every node, keeps only new ones
    index_t next = 0;
    const auto number = [&](const index_t* in, int64_t count, index_t* out) {
      constexpr int64_t kAhead = 16;
      for (int64_t q = 0; q < count; ++q) {
        if (q + kAhead < count) numbers.prefetch(in[q + kAhead]);
        found[next] = in[q];
        const index_t mine = numbers.of(in[q], next);
        next += mine == next;
        if (out != nullptr) out[q] = mine;
      }
    };
    index_t *const out = mutable_data<index_t>(made), *const out_entry =
                                                          mutable_data<index_t>(moved);
    number(data<index_t>(nodes), s, nullptr);
    number(data<index_t>(idx), n, out);
    std::copy_n(data<index_t>(entry), n, out_entry);
    names = empty(nodes, {int64_t{next}});
    std::copy_n(found.get(), next, mutable_data<index_t>(names));
    if (!ascending) return;
    parallel_rows(starts, ptr.size(0) - 1, 4, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) sort_line(starts[i], starts[i + 1], out, out_entry);
    });
  });
  return {names, made, moved};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("sample_lines", SPGRAD_BOX(&sample_lines_op));
  m.impl("relabel_lines", SPGRAD_BOX(&relabel_lines_op));
}

}  // namespace spgrad
