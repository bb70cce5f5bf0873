// Attention over the elements of dense blocks. In place of the dot products of entries in
// entries.h, lines of blocks have small dense products, so a row of keys is read once for a block.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/memory.h"
#include "products/attention/entries.h"
#include "products/blocks/block_lines.h"

namespace spgrad {

// The scores of one head at the elements of a line of blocks. In `strip` (lines, count * width) the
// elements of a row are contiguous, block after block.
template <class index_t, class F>
struct BlockScores {
  BlockView<index_t> view;  // by rows, its blocks stored row by row
  const F* bias;            // (nse) as the blocks are stored, or null
  F scale;

  // strip = the dot products of `view.lines` rows of n features from `own` on and the rows of an
  // operand that the blocks [begin, begin + count) name. turn_blocks has turned this operand.
  template <int kBytes>
  SPGRAD_INLINE void dots(const F* own, const F* turned, int64_t n, int64_t begin, int64_t count,
                          F* strip) const {
    for (int64_t p = 0; p < count; ++p) {
      const Factors<F> factors{own, turned + view.idx[begin + p] * view.width * n};
      add_small_products<kBytes>(SmallProducts<F>{
          .factors = &factors,
          .count = 1,
          .rows = view.lines,
          .inner = n,
          .columns = view.width,
          .w_step = n,
          .turned = false,
          .x_step = view.width,
          .out = strip + p * view.width,
          .out_step = count * view.width,
      });
    }
  }

  // out (lines, n) = the strip times the rows of x (columns of blocks * width, n) that its blocks
  // name. `factors` has room for `count`.
  template <int kBytes>
  SPGRAD_INLINE void sums(const F* strip, const F* x, int64_t n, int64_t begin, int64_t count,
                          Factors<F>* factors, F* out) const {
    for (int64_t p = 0; p < count; ++p) {
      factors[p] = {strip + p * view.width, x + view.idx[begin + p] * view.width * n};
    }
    add_small_products<kBytes>(SmallProducts<F>{
        .factors = factors,
        .count = count,
        .rows = view.lines,
        .inner = view.width,
        .columns = n,
        .w_step = count * view.width,
        .turned = false,
        .x_step = n,
        .out = out,
        .out_step = n,
    });
  }

  // Turns dot products into scores.
  SPGRAD_INLINE void finish(int64_t begin, int64_t count, F* strip) const {
    for (int64_t r = 0; r < view.lines; ++r) {
      for (int64_t p = 0; p < count; ++p, strip += view.width) {
        if (bias == nullptr) {
          for (int64_t c = 0; c < view.width; ++c) strip[c] *= scale;
        } else {
          const F* const added = bias + view.place(begin + p) + r * view.width;
          for (int64_t c = 0; c < view.width; ++c) strip[c] = strip[c] * scale + added[c];
        }
      }
    }
  }
};

// One head. Operands and results are those of Attention; `turned_k` has the keys as turn_blocks
// turns them. Lines [first, last) of the pointers in the view; if `row` is not negative, all of
// them are pieces of line `row`. Memory for the elements of one line or piece.
template <class index_t, class F>
struct BlockAttention {
  BlockScores<index_t, F> scores;
  const F *q, *turned_k, *v;
  int64_t d, e;
  F *out, *lse;
  int64_t row = -1;

  void lines(int64_t first, int64_t last) const {
    const auto& view = scores.view;
    const int64_t longest = view.longest(first, last);
    const auto strip = array<F>(longest * view.size());
    const auto factors = array<Factors<F>>(longest);
    with_vectors([&]<int kBytes>() {
      for (int64_t i = first; i < last; ++i) {
        const int64_t begin = view.ptr[i], count = view.ptr[i + 1] - begin;
        const int64_t length = count * view.width, at = i * view.lines;
        const F* const own = q + (row < 0 ? i : row) * view.lines * d;
        scores.template dots<kBytes>(own, turned_k, d, begin, count, strip.get());
        scores.finish(begin, count, strip.get());
        for (int64_t r = 0; r < view.lines; ++r) {
          lse[at + r] =
              Attention<index_t, F>::template normalise<kBytes>(strip.get() + r * length, length);
        }
        scores.template sums<kBytes>(strip.get(), v, e, begin, count, factors.get(), out + at * e);
      }
    });
  }
};

// The part of the gradients that is computed by rows, as in AttentionBackward; `turned_k` and
// `turned_v` are keys and values as turn_blocks turns them. Lines as above, memory for two strips.
template <class index_t, class F>
struct BlockAttentionBackward {
  BlockScores<index_t, F> scores;
  HeadGradients<F> head;
  const F *turned_k, *turned_v;
  int64_t row = -1;

  void lines(int64_t first, int64_t last) const {
    const auto& view = scores.view;
    const int64_t longest = view.longest(first, last), d = head.d, e = head.e;
    const auto strips = array<F>(2 * longest * view.size());
    const auto factors = array<Factors<F>>(longest);
    with_vectors([&]<int kBytes>() {
      for (int64_t i = first; i < last; ++i) {
        const int64_t begin = view.ptr[i], count = view.ptr[i + 1] - begin;
        const int64_t length = count * view.width, own = (row < 0 ? i : row) * view.lines;
        F *const weight = strips.get(), *const change = weight + count * view.size();
        scores.template dots<kBytes>(head.q + own * d, turned_k, d, begin, count, weight);
        scores.template dots<kBytes>(head.g + own * e, turned_v, e, begin, count, change);
        scores.finish(begin, count, weight);
        for (int64_t r = 0; r < view.lines; ++r) {
          AttentionBackward<index_t, F>::template finish<kBytes>(
              weight + r * length, change + r * length, length, head.lse[own + r],
              head.delta[own + r]);
        }
        store(begin, count, weight, change);
        scores.template sums<kBytes>(change, head.k, d, begin, count, factors.get(),
                                     head.dq + i * view.lines * d);
      }
    });
  }

 private:
  // Multiplies `change` by the scale, and writes the weights and these changes at the places of the
  // blocks.
  void store(int64_t begin, int64_t count, const F* weight, F* change) const {
    const auto& view = scores.view;
    for (int64_t r = 0; r < view.lines; ++r) {
      for (int64_t p = 0; p < count; ++p, weight += view.width, change += view.width) {
        const int64_t at = view.place(begin + p) + r * view.width;
        if (head.d_bias != nullptr) {
          for (int64_t c = 0; c < view.width; ++c) head.d_bias[at + c] += change[c];
        }
        for (int64_t c = 0; c < view.width; ++c) change[c] *= scores.scale;
        std::copy_n(change, view.width, head.changes + at);
        std::copy_n(weight, view.width, head.weights + at);
      }
    }
  }
};

}  // namespace spgrad
