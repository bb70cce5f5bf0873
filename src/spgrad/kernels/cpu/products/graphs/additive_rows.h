// Attention with additive scores, by rows: the weights of a few thousand entries at a time, then
// the products of all heads with them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/memory.h"
#include "common/threads.h"
#include "products/graphs/additive_scores.h"
#include "products/heads/heads_spmm.h"

namespace spgrad {

// The results of attention, row by row: out (m, heads * n); max (m, heads), the largest score; and
// total (m, heads), the sum of the exponentials of (score - max). Both are 0 for a row without
// scores. Over the entries whose score is greater than zero alone: above (m, heads * n), the same
// sums as in out, and share (m, heads), the sum of their weights. If share is null, neither of
// these two is computed.
template <class F>
struct AdditiveResults {
  F *out, *max, *total, *above, *share;
};

// ptr (m + 1), idx (nse), perm (nse) or null, bias (nse, heads) or null, left (m, heads), right (k,
// heads), x (k, heads * n). Columns of a row may be unsorted and repeat. All results of the rows
// asked for are written. O(nse heads n) time, memory for kScoresAtOnce scores a thread, or for the
// scores of one row. The sums of a row do not depend on other rows, or on the number of threads.
template <class index_t, class F>
struct AdditiveRows {
  const index_t *ptr, *idx, *perm;
  const F *bias, *left, *right, *x;
  AdditiveResults<F> results;
  F slope;
  int64_t heads, n, nse;
  Traffic traffic{};
  Ahead ahead{};         // rows of `right` that are prefetched
  int64_t step = heads;  // between rows of `left`

  void rows(int64_t first, int64_t last) const {
    for_batches(ptr, first, last, entries_at_once(heads),
                [&](int64_t from, int64_t to) { batch(from, to); });
    if (traffic.streamed) finish_streams();
  }

 private:
  void batch(int64_t first, int64_t last) const {
    const int64_t size = (int64_t{ptr[last]} - ptr[first]) * heads + kSpareScores;
    const bool split = results.share != nullptr;
    const auto memory = array<F>((split ? 3 : 2) * size);
    F *const scores = memory.get(), *const weights = scores + size;
    F* const above = split ? weights + size : nullptr;
    with_vectors([&]<int kBytes>() {
      with_heads<kBytes / sizeof(F)>(heads, [&]<int kHeads>() {
        score<kHeads>(first, last, scores);
        weigh<kBytes, kHeads>(first, last, scores, weights, above);
      });
    });
    if (n == 0) return;
    product(weights, results.out, first, last);
    if (split) product(above, results.above, first, last);
  }

  // Row i of y = the sum over its entries p of weights[p - ptr[first]] times row idx[p] of x.
  void product(const F* weights, F* y, int64_t first, int64_t last) const {
    const HeadsSpmm<index_t, F> sums{
        .ptr = ptr,
        .idx = idx,
        .perm = nullptr,
        .val = weights - ptr[first] * heads,
        .x = x,
        .y = y,
        .heads = heads,
        .n = n,
        .nse = nse,  // a vector of weights that begins in the range may end in the room after it
        .traffic = traffic,
    };
    with_vectors([&]<int kBytes>() { heads_rows<kBytes>(sums, first, last); });
  }

  // The scores of all entries.
  template <int kHeads>
  SPGRAD_INLINE void score(int64_t first, int64_t last, F* out) const {
    const int64_t count = kHeads > 0 ? kHeads : heads;
    const Distance distance = distance_of<F>(ahead, count);
    const auto row = [&](int64_t p) { return right + idx[std::min(p, nse - 1)] * count; };
    for (int64_t i = first; i < last; ++i) {
      const F* const own = left + i * step;
      for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p, out += count) {
        if (distance) prefetch_ahead([&](int64_t q) { return row(p + q); }, distance, count);
        const F* const other = right + idx[p] * count;
        const F* const added =
            bias == nullptr ? nullptr : bias + (perm == nullptr ? p : int64_t{perm[p]}) * count;
        for_heads<kHeads, F>(count, [&]<class V>(int64_t head, V) {
          V s = read_as<V>(own + head) + read_as<V>(other + head);
          if (added != nullptr) s += read_as<V>(added + head);
          write_as(leaky(s, slope), out + head);
        });
      }
    }
  }

  // The weights of all entries, row by row. A row may write beyond its last entry; the next row
  // overwrites these numbers.
  template <int kBytes, int kHeads>
  SPGRAD_INLINE void weigh(int64_t first, int64_t last, const F* scores, F* weights,
                           F* above) const {
    for (int64_t i = first; i < last; ++i) {
      const int64_t size = (ptr[i + 1] - ptr[i]) * heads;
      if constexpr (kHeads == 0) {
        normalise_any<kBytes>(i, scores, weights, above, size);
      } else if (size <= kBytes / static_cast<int64_t>(sizeof(F))) {
        normalise<kBytes, kHeads, true>(i, scores, weights, above, size);
      } else {
        normalise<kBytes, kHeads, false>(i, scores, weights, above, size);
      }
      scores += size, weights += size;
      if (above != nullptr) above += size;
    }
  }

  // The weights of row i. A vector has kLanes / kHeads entries, and with kOne all of them.
  template <int kBytes, int kHeads, bool kOne>
  SPGRAD_INLINE void normalise(int64_t i, const F* scores, F* weights, F* above,
                               int64_t size) const {
    constexpr int kLanes = kBytes / sizeof(F);
    using V = Vector<F, kLanes>;
    const auto each = [&](const auto& f) {
      for (int64_t at = 0; at < size && !kOne; at += kLanes) f(at);
      if constexpr (kOne) f(int64_t{0});
    };
    const auto score = [&](int64_t at) {
      return load_part<kLanes>(scores + at, size - at, kNoScore<F>, true);
    };
    V max = all<V>(kNoScore<F>), total{}, share{};
    each([&](int64_t at) { max = Larger()(score(at), max); });
    max = join_heads<kLanes, kHeads>(max, Larger());
    max = max == kNoScore<F> ? V{} : max;
    each([&](int64_t at) {
      const V of_entries = score(at), term = exp_lanes<F>(of_entries - max);
      if constexpr (!kOne) write_as(term, weights + at);
      total += term;
      if (above != nullptr) share += of_entries > 0 ? term : V{};
    });
    const V first = total;  // with kOne, all terms
    total = join_heads<kLanes, kHeads>(total, Add());
    const V scale = total == 0 ? V{} : 1 / total;
    each([&](int64_t at) {
      const V weight = (kOne ? first : read_as<V>(weights + at)) * scale;
      write_as(weight, weights + at);
      if (above != nullptr) write_as(V(score(at) > 0 ? weight : V{}), above + at);
    });
    store_heads<kHeads>(max, results.max + i * kHeads);
    store_heads<kHeads>(total, results.total + i * kHeads);
    if (above == nullptr) return;
    share = join_heads<kLanes, kHeads>(share, Add());
    store_heads<kHeads>(V(share * scale), results.share + i * kHeads);
  }

  // The same for any number of heads.
  template <int kBytes>
  SPGRAD_INLINE void normalise_any(int64_t i, const F* scores, F* weights, F* above,
                                   int64_t size) const {
    constexpr int kLanes = kBytes / sizeof(F);
    F *const max = results.max + i * heads, *const total = results.total + i * heads;
    const auto each = [&](const auto& f) {
      for (int64_t p = 0; p < size; p += heads) {
        for (int64_t head = 0; head < heads; ++head) f(p + head, head);
      }
    };
    std::fill_n(max, heads, kNoScore<F>);
    std::fill_n(total, heads, F{0});
    each([&](int64_t at, int64_t head) { max[head] = Larger()(scores[at], max[head]); });
    for (int64_t head = 0; head < heads; ++head) {
      max[head] = max[head] == kNoScore<F> ? F{0} : max[head];
    }
    each([&](int64_t at, int64_t head) { weights[at] = scores[at] - max[head]; });
    for (int64_t at = 0; at < size; at += kLanes) {
      const auto score = load_part<kLanes>(weights + at, size - at, kNoScore<F>, true);
      write_as(exp_lanes<F>(score), weights + at);
    }
    each([&](int64_t at, int64_t head) { total[head] += weights[at]; });
    each([&](int64_t at, int64_t head) {
      weights[at] = total[head] == 0 ? F{0} : weights[at] / total[head];
    });
    if (above == nullptr) return;
    F* const share = results.share + i * heads;
    std::fill_n(share, heads, F{0});
    each([&](int64_t at, int64_t head) {
      above[at] = scores[at] > 0 ? weights[at] : F{0};
      share[head] += above[at];
    });
  }
};

// Combines the results of the pieces of a row into the results of the row. The weight of a piece is
// its share of the sum of all exponentials.
template <class F>
void join_pieces(const AdditiveResults<F>& pieces, int64_t count, const AdditiveResults<F>& row,
                 int64_t heads, int64_t n) {
  const int64_t width = heads * n;
  std::fill_n(row.out, width, F{0});
  if (row.share != nullptr) {
    std::fill_n(row.above, width, F{0});
    std::fill_n(row.share, heads, F{0});
  }
  for (int64_t head = 0; head < heads; ++head) {
    F max = kNoScore<F>, total = 0;
    for (int64_t piece = 0; piece < count; ++piece) {
      const int64_t at = piece * heads + head;
      if (pieces.total[at] != 0) max = std::max(max, pieces.max[at]);
    }
    if (max == kNoScore<F>) max = 0;
    const auto part = [&](int64_t at) {
      return pieces.total[at] == 0 ? F{0} : pieces.total[at] * std::exp(pieces.max[at] - max);
    };
    for (int64_t piece = 0; piece < count; ++piece) total += part(piece * heads + head);
    row.max[head] = max;
    row.total[head] = total;
    if (total == 0) continue;
    for (int64_t piece = 0; piece < count; ++piece) {
      const int64_t at = piece * heads + head;
      const F weight = part(at) / total;
      const auto add = [&](const F* from, F* to) {
        for (int64_t j = 0; j < n; ++j) to[head * n + j] += weight * from[at * n + j];
      };
      add(pieces.out, row.out);
      if (row.share == nullptr) continue;
      add(pieces.above, row.above);
      row.share[head] += weight * pieces.share[at];
    }
  }
}

}  // namespace spgrad
