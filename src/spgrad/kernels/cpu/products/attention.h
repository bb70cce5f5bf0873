// Attention over the entries of a row view: SDDMM, softmax and SpMM on a range of entries at a
// time, so that scores and weights stay in the cache and are never stored. The gradients compute
// them again, of one head after the other (Dao et al. 2022, "FlashAttention", with a pattern in
// place of the tiles).
#pragma once

#include <cmath>

#include "products/sddmm.h"
#include "products/spmm.h"
#include "reductions/softmax.h"

namespace spgrad {

// Scores of a row's entries: s = scale q.k + bias[perm[p]], for one head.
template <class index_t, class F>
struct Scores {
  const index_t *idx, *perm;  // perm may be null
  const F* bias;              // (nse), or null
  F scale;
  int64_t nse;

  // Makes scores of the dot products of `count` entries from entry `begin` on.
  SPGRAD_INLINE void finish(int64_t begin, int64_t count, F* s) const {
    if (bias == nullptr) {
      for (int64_t p = 0; p < count; ++p) s[p] *= scale;
    } else if (perm == nullptr) {
      for (int64_t p = 0; p < count; ++p) s[p] = s[p] * scale + bias[begin + p];
    } else {
      for (int64_t p = 0; p < count; ++p) s[p] = s[p] * scale + bias[perm[begin + p]];
    }
  }
};

// The longest line that is not split, and the entries that are taken together: so many that rows of
// keys, and then those of values, are read from memory once for all of them, and not in turns.
inline constexpr int64_t kLongest = 4096, kAttended = 1 << 20;

// Calls f(i, j) on consecutive ranges of the lines [first, last), none longer than kLongest, with
// at most kAttended entries.
template <class index_t, class F>
SPGRAD_INLINE void for_attended(const index_t* ptr, int64_t first, int64_t last, const F& f) {
  while (first < last) {
    int64_t next = first + 1;
    while (next < last && ptr[next + 1] - ptr[first] <= kAttended) ++next;
    f(first, next);
    first = next;
  }
}

// A number for each entry of a range.
template <class F>
Array<F> buffer_of(int64_t entries) {
  return array<F>(entries);
}

// out[p] = the dot product of row i of `left` and row idx[p] of `right`, for the entries p of the
// lines [first, last), counted from the first of them.
template <class index_t, class F>
void dots_of(const index_t* ptr, const Scores<index_t, F>& a, const F* left, const F* right,
             int64_t d, int64_t first, int64_t last, F* out) {
  if (d == 0) std::fill_n(out, ptr[last] - ptr[first], F{0});
  sddmm_lines(Sddmm<index_t, F>{ptr, a.idx, nullptr, left, right, out - ptr[first], d, a.nse},
              first, last);
}

// Row i of y = the sum over p of weights[p] times row idx[p] of x, with p counted alike.
template <class index_t, class F>
void sums_of(const index_t* ptr, const Scores<index_t, F>& a, const F* weights, const F* x,
             int64_t d, int64_t first, int64_t last, F* y) {
  spmm_lines(Spmm<index_t, F>{ptr, a.idx, nullptr, weights - ptr[first], x, y, d, a.nse}, first,
             last);
}

// One head: q (m, d), k (n, d), v (n, e) and, for the lines [first, last), out (m, e) and lse (m),
// the logarithm of the sum of the exponentials of a line's scores. All row by row; the results are
// written wholly. A line without entries, or whose scores are all minus infinity, gives 0 and minus
// infinity. O(nse (d + e)) time, memory for kAttended entries of every thread.
template <class index_t, class F>
struct Attention {
  Scores<index_t, F> scores;
  const F *q, *k, *v;
  int64_t d, e;
  F *out, *lse;

  // Lines of a range that for_attended gives, or one.
  void lines(const index_t* ptr, int64_t first, int64_t last) const {
    const auto weights = buffer_of<F>(ptr[last] - ptr[first]);
    dots_of(ptr, scores, q, k, d, first, last, weights.get());
    with_vectors([&]<int kBytes>() {
      for (int64_t i = first; i < last; ++i) {
        const int64_t count = ptr[i + 1] - ptr[i];
        F* w = weights.get() + (ptr[i] - ptr[first]);
        scores.finish(ptr[i], count, w);
        lse[i] = normalised<kBytes>(w, count);
      }
    });
    sums_of(ptr, scores, weights.get(), v, e, first, last, out);
  }

  // Makes weights of scores.
  template <int kBytes>
  static SPGRAD_INLINE F normalised(F* w, int64_t count) {
    constexpr F kNone = -std::numeric_limits<F>::infinity();
    using Line = Softmax<kBytes, F>;
    // a vector may pass the end of the line and come upon the scores of the next: not to be written
    const F max = count == 0 ? kNone : Line::largest(w, count, false);
    if (max == kNone) {
      std::fill_n(w, count, F{0});
      return kNone;
    }
    const F sum = Line::total(w, count, max, false, w);
    Line::finish(w, count, max, sum, false, w);
    return max + std::log(sum);
  }
};

// What the gradients of one head are made of, by rows: g (m, e) the cotangent, lse (m), delta (m)
// the dot products of g and out. For every entry, where its bias stands (nse): `weights`, and
// `changes`, what the loss changes by with the score, times scale. dq (m, d) is written, d_bias
// (nse), or null, is added to. Costs, and the order of the sums, as above.
template <class index_t, class F>
struct AttentionBackward {
  Scores<index_t, F> scores;
  const F *q, *k, *v, *g;
  const F *lse, *delta;
  int64_t d, e;
  F *weights, *changes, *dq, *d_bias;

  // Lines of a range that for_attended gives, or one.
  void lines(const index_t* ptr, int64_t first, int64_t last) const {
    const int64_t begin = ptr[first], entries = ptr[last] - begin;
    const bool direct = scores.perm == nullptr;
    const auto buffers = buffer_of<F>(direct ? 0 : 2 * entries);
    F* w = direct ? weights + begin : buffers.get();
    F* c = direct ? changes + begin : buffers.get() + entries;
    dots_of(ptr, scores, q, k, d, first, last, w);
    dots_of(ptr, scores, g, v, e, first, last, c);
    with_vectors([&]<int kBytes>() {
      for (int64_t i = first; i < last; ++i) {
        const int64_t from = ptr[i] - begin, count = ptr[i + 1] - ptr[i];
        scores.finish(ptr[i], count, w + from);
        finish<kBytes>(w + from, c + from, count, lse[i], delta[i]);
      }
    });
    for (int64_t p = 0; p < entries; ++p) {
      const int64_t at = direct ? begin + p : static_cast<int64_t>(scores.perm[begin + p]);
      if (d_bias != nullptr) d_bias[at] += c[p];
      c[p] *= scores.scale;
      if (!direct) weights[at] = w[p], changes[at] = c[p];
    }
    sums_of(ptr, scores, c, k, d, first, last, dq);
  }

  // Makes weights of the scores of a row, and changes of the dot products c.
  template <int kBytes>
  static SPGRAD_INLINE void finish(F* w, F* c, int64_t count, F of_row, F dot) {
    constexpr F kNone = -std::numeric_limits<F>::infinity();
    constexpr int kLanes = kBytes / sizeof(F);
    if (of_row == kNone) std::fill_n(w, count, kNone), of_row = 0;
    for (int64_t p = 0; p < count; p += kLanes) {
      const bool whole = count - p >= kLanes;
      const auto weight = exp_lanes<F>(load_part<kLanes>(w + p, count - p, kNone, whole) - of_row);
      const auto change = weight * (load_part<kLanes>(c + p, count - p, F{0}, whole) - dot);
      store_part<kLanes, F>(weight, count - p, w + p, whole);
      store_part<kLanes, F>(change, count - p, c + p, whole);
    }
  }
};

}  // namespace spgrad
