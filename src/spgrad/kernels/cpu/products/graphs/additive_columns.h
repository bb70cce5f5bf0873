// The gradients of attention with additive scores. The gradients of a column are sums over its
// entries; the kernel computes the weights of these entries again, from four numbers of each row.
// The gradients of the rows need no pass over the entries: see AdditiveRowGradients.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/memory.h"
#include "common/threads.h"
#include "products/graphs/additive_rows.h"
#include "products/graphs/additive_scores.h"
#include "products/heads/heads_sddmm.h"
#include "products/heads/heads_spmm.h"

namespace spgrad {

// The part of the gradients that is computed by rows, for rows of heads * n columns. Let w be the
// weights of a row, d the dot products of g and the rows of x, and delta = sum of w d = g . out.
// The gradient of a score is w (d - delta), and these gradients add up to 0 over a row. leaky_relu
// multiplies them by 1 or by slope. So the gradient of `left` is (1 - slope) times their sum over
// the scores above zero, and this sum is g . above - share delta. It is 0 in rows without entries,
// whatever g is.
//
// Writes d_left (m, heads), which may be null, and `numbers` (m, 4 heads): left, max, delta, and 1
// / total, 0 in place of 1 / 0. O(m heads n) time.
template <class F>
struct AdditiveRowGradients {
  const F *left, *g;
  AdditiveResults<const F> results;
  F *d_left, *numbers;
  F slope;
  int64_t heads, n;

  void rows(int64_t first, int64_t last) const {
    int32_t diagonal[kRowsAtOnce + 1];
    for (int32_t i = 0; i <= kRowsAtOnce; ++i) diagonal[i] = i;
    const auto memory = array<F>(2 * kRowsAtOnce * heads);
    F *const delta = memory.get(), *const part = delta + kRowsAtOnce * heads;
    for (int64_t i = first; i < last; i += kRowsAtOnce) {
      const int64_t count = std::min(kRowsAtOnce, last - i);
      dots(diagonal, i, count, results.out, delta);
      if (d_left != nullptr) dots(diagonal, i, count, results.above, part);
      with_vectors([&]<int kBytes>() {
        with_heads<kBytes / sizeof(F)>(
            heads, [&]<int kHeads>() { finish<kHeads>(i, count, delta, part); });
      });
    }
  }

 private:
  static constexpr int64_t kRowsAtOnce = 256;

  // The dot products of g and `other` for the heads of `count` rows from row i on.
  void dots(const int32_t* diagonal, int64_t i, int64_t count, const F* other, F* out) const {
    const HeadsSddmm<int32_t, F> product{
        .ptr = diagonal,
        .idx = diagonal,
        .perm = nullptr,
        .g = g + i * heads * n,
        .x = other + i * heads * n,
        .out = out,
        .heads = heads,
        .n = n,
        .nse = count,
    };
    with_vectors([&]<int kBytes>() { heads_sddmm_rows<kBytes>(product, 0, count); });
  }

  template <int kHeads>
  SPGRAD_INLINE void finish(int64_t i, int64_t count, const F* delta, const F* part) const {
    const int64_t each = kHeads > 0 ? kHeads : heads;
    for (int64_t at = i * each; at < (i + count) * each; at += each) {
      for_heads<kHeads, F>(each, [&]<class V>(int64_t head, V none) {
        const V total = read_as<V>(results.total + at + head);
        F* const to = numbers + 4 * at + head;
        write_as(read_as<V>(left + at + head), to);
        write_as(read_as<V>(results.max + at + head), to + each);
        write_as(read_as<V>(delta + head), to + 2 * each);
        write_as(V(total == 0 ? none : 1 / total), to + 3 * each);
        if (d_left == nullptr) return;
        const V rest = read_as<V>(results.share + at + head) * read_as<V>(delta + head);
        const V change = (1 - slope) * (read_as<V>(part + head) - rest);
        write_as(V(total == 0 ? none : change), d_left + at + head);
      });
      delta += each, part += each;
    }
  }
};

// ptr (k + 1), idx (nse), perm (nse) or null: the pattern by columns. bias (nse, heads) or null,
// right (k, heads), x (k, heads * n), g (m, heads * n), and numbers (m, 4 heads) as above.
// Writes d_right (k, heads) and dx (k, heads * n) of the columns asked for, and d_bias (nse,
// heads), which may be null, at the places of the bias of their entries. O(nse heads n) time,
// memory for 3 kScoresAtOnce numbers a thread, or for three times the scores of one column. The
// sums of a column do not depend on other columns, or on the number of threads.
template <class index_t, class F>
struct AdditiveColumns {
  const index_t *ptr, *idx, *perm;
  const F *bias, *right, *x, *g, *numbers;
  F *d_right, *dx, *d_bias;
  F slope;
  int64_t heads, n, nse;
  Traffic traffic{};
  Ahead ahead{};       // rows of `g` that are prefetched for dot products
  Ahead of_numbers{};  // rows of `numbers` that are prefetched
  int64_t own = -1;    // if not negative, all lines are pieces of this column

  void columns(int64_t first, int64_t last) const {
    for_batches(ptr, first, last, entries_at_once(heads),
                [&](int64_t from, int64_t to) { batch(from, to); });
    if (traffic.streamed) finish_streams();
  }

 private:
  void batch(int64_t first, int64_t last) const {
    const int64_t entries = int64_t{ptr[last]} - ptr[first];
    const int64_t size = entries * heads + kSpareScores;
    const auto memory = array<F>(3 * size);
    F *const weights = memory.get(), *const changes = weights + size,
             *const scales = changes + size;
    const HeadsSddmm<index_t, F> dots{
        .ptr = ptr,
        .idx = idx,
        .perm = nullptr,
        .g = own < 0 ? x : x + own * heads * n,
        .x = g,
        .out = changes - ptr[first] * heads,
        .heads = heads,
        .n = n,
        .nse = nse,
        .ahead = ahead,
        .step = own < 0 ? heads * n : 0,
    };
    const HeadsSpmm<index_t, F> sums{
        .ptr = ptr,
        .idx = idx,
        .perm = nullptr,
        .val = weights - ptr[first] * heads,
        .x = g,
        .y = dx,
        .heads = heads,
        .n = n,
        .nse = nse,  // a vector of weights that begins in the range may end in the room after it
        .traffic = traffic,
    };
    with_vectors([&]<int kBytes>() { heads_sddmm_rows<kBytes>(dots, first, last); });
    with_vectors([&]<int kBytes>() {
      with_heads<kBytes / sizeof(F)>(heads, [&]<int kHeads>() {
        score<kHeads>(first, last, weights, changes, scales);
        weigh<kBytes>(entries * heads, scales, weights, changes);
        sum<kBytes, kHeads>(first, last, changes);
      });
    });
    if (n == 0) return;
    with_vectors([&]<int kBytes>() { heads_rows<kBytes>(sums, first, last); });
  }

  SPGRAD_INLINE int64_t place(int64_t p) const {
    return perm == nullptr ? p : static_cast<int64_t>(perm[p]);
  }

  // Computes for all entries: the scores less max; 1 / total; and, in the memory of the dot
  // products, (dot product - delta) times the derivative of leaky_relu.
  template <int kHeads>
  SPGRAD_INLINE void score(int64_t first, int64_t last, F* scores, F* changes, F* scales) const {
    const int64_t count = kHeads > 0 ? kHeads : heads;
    const Distance distance = distance_of<F>(of_numbers, 4 * count);
    const auto row = [&](int64_t p) { return numbers + idx[std::min(p, nse - 1)] * 4 * count; };
    for (int64_t j = first; j < last; ++j) {
      const F* const of_column = right + (own < 0 ? j : own) * count;
      for (int64_t p = ptr[j]; p < ptr[j + 1]; ++p) {
        if (distance) prefetch_ahead([&](int64_t q) { return row(p + q); }, distance, 4 * count);
        const F* const of_row = numbers + idx[p] * 4 * count;
        const F* const added = bias == nullptr ? nullptr : bias + place(p) * count;
        for_heads<kHeads, F>(count, [&]<class V>(int64_t head, V) {
          V s = read_as<V>(of_row + head) + read_as<V>(of_column + head);
          if (added != nullptr) s += read_as<V>(added + head);
          write_as(V(leaky(s, slope) - read_as<V>(of_row + count + head)), scores + head);
          const V change = read_as<V>(changes + head) - read_as<V>(of_row + 2 * count + head);
          const V lessened = change * slope;
          write_as(V(s > 0 ? change : lessened), changes + head);
          write_as(read_as<V>(of_row + 3 * count + head), scales + head);
        });
        scores += count, changes += count, scales += count;
      }
    }
  }

  // Turns the scores into weights, and the numbers that `score` wrote over the dot products into
  // the gradients of the arguments of leaky_relu.
  template <int kBytes>
  SPGRAD_INLINE void weigh(int64_t size, const F* scales, F* scores, F* changes) const {
    constexpr int kLanes = kBytes / sizeof(F);
    using V = Vector<F, kLanes>;
    for (int64_t at = 0; at < size; at += kLanes) {
      const V score = load_part<kLanes>(scores + at, size - at, kNoScore<F>, true);
      const V weight = exp_lanes<F>(score) * read_as<V>(scales + at);
      write_as(weight, scores + at);
      write_as(V(weight * read_as<V>(changes + at)), changes + at);
    }
  }

  // Adds up the gradients of the columns, and writes those of the bias.
  template <int kBytes, int kHeads>
  SPGRAD_INLINE void sum(int64_t first, int64_t last, const F* changes) const {
    for (int64_t j = first; j < last; ++j) {
      const int64_t size = (ptr[j + 1] - ptr[j]) * heads;
      F* const out = d_right + j * heads;
      if constexpr (kHeads > 0) {
        constexpr int kLanes = kBytes / sizeof(F);
        Vector<F, kLanes> total{};
        for (int64_t at = 0; at < size; at += kLanes) {
          total += load_part<kLanes>(changes + at, size - at, F{0}, true);
        }
        store_heads<kHeads>(join_heads<kLanes, kHeads>(total, Add()), out);
      } else {
        std::fill_n(out, heads, F{0});
        for (int64_t at = 0; at < size; at += heads) {
          for (int64_t head = 0; head < heads; ++head) out[head] += changes[at + head];
        }
      }
      if (d_bias != nullptr) {
        for (int64_t p = ptr[j]; p < ptr[j + 1]; ++p) {
          std::copy_n(changes + (p - ptr[j]) * heads, heads, d_bias + place(p) * heads);
        }
      }
      changes += size;
    }
  }
};

}  // namespace spgrad
