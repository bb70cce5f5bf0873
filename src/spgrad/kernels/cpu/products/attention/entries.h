// Attention over the entries of a row view: SDDMM, softmax and SpMM on a range of entries at a
// time, so scores and weights are never stored for all entries. The gradients compute scores and
// weights again, for one head after the other (Dao et al. 2022, "FlashAttention", with a pattern in
// place of the tiles).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "common/memory.h"
#include "common/threads.h"
#include "products/sddmm.h"
#include "products/spmm.h"
#include "reductions/softmax.h"

namespace spgrad {

// The operands of the scores of one head: the score of entry p of row i is scale * q_i . k_idx[p] +
// bias[perm[p]].
template <class index_t, class F>
struct Scores {
  const index_t *idx, *perm;  // perm may be null
  const F* bias;              // (nse), or null
  F scale;
  int64_t nse;

  // Turns the dot products of `count` entries from entry `begin` on into their scores.
  SPGRAD_INLINE void finish(int64_t begin, int64_t count, F* scores) const {
    if (bias == nullptr) {
      for (int64_t p = 0; p < count; ++p) scores[p] *= scale;
    } else if (perm == nullptr) {
      for (int64_t p = 0; p < count; ++p) scores[p] = scores[p] * scale + bias[begin + p];
    } else {
      for (int64_t p = 0; p < count; ++p) scores[p] = scores[p] * scale + bias[perm[begin + p]];
    }
  }
};

// Rows with more entries than this are split.
inline constexpr int64_t kLongest = 4096;

// The number of entries that are computed together. Rows of keys are read for all of them, then
// rows of values. With fewer entries, keys and values would displace each other from the cache more
// often.
inline constexpr int64_t kAttended = 1 << 20;

// out[p - ptr[first]] = the dot product of row i of `left` and row idx[p] of `right`, for every
// entry p of every row i of [first, last).
template <class index_t, class F>
void dots_of(const index_t* ptr, const Scores<index_t, F>& scores, const F* left, const F* right,
             int64_t d, int64_t first, int64_t last, F* out) {
  if (d == 0) std::fill_n(out, ptr[last] - ptr[first], F{0});
  const Sddmm<index_t, F> product{
      .ptr = ptr,
      .idx = scores.idx,
      .perm = nullptr,
      .g = left,
      .x = right,
      .out = out - ptr[first],
      .n = d,
      .nse = scores.nse,
  };
  sddmm_lines(product, first, last);
}

// Row i of y = the sum over the entries p of row i of weights[p - ptr[first]] times row idx[p] of
// x, for the rows [first, last).
template <class index_t, class F>
void sums_of(const index_t* ptr, const Scores<index_t, F>& scores, const F* weights, const F* x,
             int64_t d, int64_t first, int64_t last, F* y) {
  const Spmm<index_t, F> product{
      .ptr = ptr,
      .idx = scores.idx,
      .perm = nullptr,
      .val = weights - ptr[first],
      .x = x,
      .y = y,
      .n = d,
      .nse = ptr[last],  // there are no weights after it
  };
  spmm_lines(product, first, last);
}

// One head: q (m, d), k (n, d), v (n, e) and, for the rows asked for, out (m, e) and lse (m), the
// logarithm of the sum of the exponentials of a row's scores. All are stored row by row; every
// element of the results is written. A row without entries, or whose scores are all minus infinity,
// gives 0 and minus infinity. O(nse (d + e)) time, memory for kAttended entries a thread.
template <class index_t, class F>
struct Attention {
  Scores<index_t, F> scores;
  const F *q, *k, *v;
  int64_t d, e;
  F *out, *lse;

  // Rows [first, last), which have at most kAttended entries, or are one row.
  void rows(const index_t* ptr, int64_t first, int64_t last) const {
    const auto weights = array<F>(ptr[last] - ptr[first]);
    dots_of(ptr, scores, q, k, d, first, last, weights.get());
    with_vectors([&]<int kBytes>() {
      for (int64_t i = first; i < last; ++i) {
        const int64_t count = ptr[i + 1] - ptr[i];
        F* of_row = weights.get() + (ptr[i] - ptr[first]);
        scores.finish(ptr[i], count, of_row);
        lse[i] = normalise<kBytes>(of_row, count);
      }
    });
    sums_of(ptr, scores, weights.get(), v, e, first, last, out);
  }

  // Turns the scores of a row into weights, and returns its lse.
  template <int kBytes>
  static SPGRAD_INLINE F normalise(F* scores, int64_t count) {
    constexpr F kNone = -std::numeric_limits<F>::infinity();
    constexpr bool kRoom = false;  // the scores of the next row follow those of this row
    using Row = Softmax<kBytes, F>;
    const F max = count == 0 ? kNone : Row::largest(scores, count, kRoom);
    if (max == kNone) {
      std::fill_n(scores, count, F{0});
      return kNone;
    }
    const F sum = Row::total(scores, count, max, kRoom, scores);
    Row::finish(scores, count, max, sum, false, scores);
    return max + std::log(sum);
  }
};

// One head of the operands and of the gradients. q, k and v are those of Attention, g (m, e) is the
// cotangent, lse (m) that of Attention, delta (m) the dot products of g and out. At the place of
// the bias of an entry, `weights` (nse) has its weight, and `changes` (nse) the derivative of the
// loss in its score times the scale. Every element of dq (m, d), dk (n, d) and dv (n, e) is
// written; d_bias (nse), which may be null, is added to.
template <class F>
struct HeadGradients {
  const F *q, *k, *v, *g, *lse, *delta;
  int64_t d, e;
  F *weights, *changes, *dq, *dk, *dv, *d_bias;

  // The same, with another place for the gradient of the queries.
  HeadGradients to(F* queries) const {
    HeadGradients found = *this;
    found.dq = queries;
    return found;
  }
};

// The part of the gradients that is computed by rows: writes weights, changes and dq, and adds to
// d_bias. The costs and the order of the sums are as above.
template <class index_t, class F>
struct AttentionBackward {
  Scores<index_t, F> scores;
  HeadGradients<F> head;

  // Rows [first, last), which have at most kAttended entries, or are one row.
  void rows(const index_t* ptr, int64_t first, int64_t last) const {
    const int64_t begin = ptr[first], entries = ptr[last] - begin;
    const bool direct = scores.perm == nullptr;
    const auto buffers = array<F>(direct ? 0 : 2 * entries);
    F* const weight = direct ? head.weights + begin : buffers.get();
    F* const change = direct ? head.changes + begin : buffers.get() + entries;
    dots_of(ptr, scores, head.q, head.k, head.d, first, last, weight);
    dots_of(ptr, scores, head.g, head.v, head.e, first, last, change);
    with_vectors([&]<int kBytes>() {
      for (int64_t i = first; i < last; ++i) {
        const int64_t from = ptr[i] - begin, count = ptr[i + 1] - ptr[i];
        scores.finish(ptr[i], count, weight + from);
        finish<kBytes>(weight + from, change + from, count, head.lse[i], head.delta[i]);
      }
    });
    for (int64_t p = 0; p < entries; ++p) {
      const int64_t at = direct ? begin + p : static_cast<int64_t>(scores.perm[begin + p]);
      if (head.d_bias != nullptr) head.d_bias[at] += change[p];
      change[p] *= scores.scale;
      if (!direct) {
        head.weights[at] = weight[p];
        head.changes[at] = change[p];
      }
    }
    sums_of(ptr, scores, change, head.k, head.d, first, last, head.dq);
  }

  // Turns the scores of a row into weights, and the dot products in `change` into changes.
  template <int kBytes>
  static SPGRAD_INLINE void finish(F* weight, F* change, int64_t count, F lse, F delta) {
    constexpr F kNone = -std::numeric_limits<F>::infinity();
    constexpr int kLanes = kBytes / sizeof(F);
    if (lse == kNone) {
      std::fill_n(weight, count, kNone);
      lse = 0;
    }
    for (int64_t p = 0; p < count; p += kLanes) {
      const bool whole = count - p >= kLanes;
      const auto score = load_part<kLanes>(weight + p, count - p, kNone, whole);
      const auto dot = load_part<kLanes>(change + p, count - p, F{0}, whole);
      const auto exponential = exp_lanes<F>(score - lse);
      store_part<kLanes, F>(exponential, count - p, weight + p, whole);
      store_part<kLanes, F>(exponential * (dot - delta), count - p, change + p, whole);
    }
  }
};

// Combines the attentions over the pieces of a row, out (pieces, lines, e) and lse (pieces, lines),
// into y (lines, e) and `joined` (lines).
template <class F>
void join_attentions(const F* out, const F* lse, int64_t pieces, int64_t lines, int64_t e, F* y,
                     F* joined) {
  constexpr F kNone = -std::numeric_limits<F>::infinity();
  std::fill_n(y, lines * e, F{0});
  for (int64_t r = 0; r < lines; ++r) {
    F max = kNone, sum = 0;
    for (int64_t i = 0; i < pieces; ++i) max = std::max(max, lse[i * lines + r]);
    joined[r] = max;
    if (max == kNone) continue;
    for (int64_t i = 0; i < pieces; ++i) sum += std::exp(lse[i * lines + r] - max);
    for (int64_t i = 0; i < pieces; ++i) {
      const F share = std::exp(lse[i * lines + r] - max) / sum;
      const F* const part = out + (i * lines + r) * e;
      for (int64_t j = 0; j < e; ++j) y[r * e + j] += share * part[j];
    }
    joined[r] = max + std::log(sum);
  }
}

}  // namespace spgrad
