// The merge of a few lines at a time, in the first-level cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/targets.h"
#include "elementwise/branches.h"
#include "elementwise/insertion.h"
#include "elementwise/operand.h"
#include "elementwise/takers.h"

namespace spgrad {

// Entries of both operands that are merged at a time: whole lines, or a part of one line. The
// elements stay in the first-level cache until the taker has read them; a merge by branches writes
// its elements to their places.
//
// A key is the index of an entry, and of whole lines also the number of the line in its upper bits,
// so that no branch depends on the end of a line. There are two ways to merge the keys. By steps,
// each of which makes one element and takes no branch that depends on the keys; a step waits for
// the step before, so the keys are cut into two halves whose steps take turns. And by runs: while
// the next keys are all of one operand, several are copied at a time. Whole lines need no keys
// where branches can be predicted, or where one operand has few entries: a search finds the place
// of each of these entries.
template <bool kUnion, class index_t, class T>
class Batch {
 public:
  static constexpr int64_t kEntries = 1024;  // of one operand, at most

  using Source = Operand<index_t, T>;
  using Insert = Insertion<kUnion, index_t, T>;

  Batch(const Source& a, const Source& b, const Taker<kUnion, index_t, T>& taker)
      : a_(a), b_(b), taker_(taker), branches_(a, b) {}

  // The end of the whole lines from `line` on, `last` at most, that are merged at a time: `line`
  // itself if this line is too long.
  int64_t end_of(int64_t line, int64_t last) const {
    const index_t *of_a = a_.source.lines.ptr, *of_b = b_.source.lines.ptr;
    const auto fits = [&](int64_t i) {
      return of_a[i] - of_a[line] <= kEntries && of_b[i] - of_b[line] <= kEntries;
    };
    int64_t end = line;
    last = std::min(line + kMostLines, last);
    if (fits(last)) return last;
    while (end + 1 < last) {
      const int64_t middle = end + (last - end) / 2;
      (fits(middle) ? end : last) = middle;
    }
    return end;
  }

  // Merges lines [line, end), which end_of found, after `before` earlier elements. Writes to ptr
  // the number of elements up to the end of each line. Returns the number of the new elements, or
  // -1, and has done nothing, if an index is too large.
  int64_t merge_lines(int64_t line, int64_t end, int64_t before, index_t* ptr) {
    const index_t *of_a = a_.source.lines.ptr, *of_b = b_.source.lines.ptr;
    const int64_t size_a = of_a[end] - of_a[line], size_b = of_b[end] - of_b[line];
    const bool few_b = size_b <= size_a / kFew, few_a = size_a <= size_b / kFew;
    const bool few = few_a || few_b;
    const int64_t number = batches_++;
    if (takes_branches(number) && (kUnion || !few)) {
      return by_branches(number, {of_a + line, of_b + line, end - line, ptr + line}, before);
    }
    if (few) {
      const Source &many = few_b ? a_.source : b_.source, &other = few_b ? b_.source : a_.source;
      const Made<index_t, T> made{idx_, few_b ? kept_a_ : kept_b_, few_b ? kept_b_ : kept_a_};
      const int64_t count = Insert::merge(many, other, made, line, end, before, ptr);
      taker_.take(before, count, {idx_, kept_a_, kept_b_});
      return count;
    }
    if (!a_.take_lines(line, end) || !b_.take_lines(line, end)) return -1;
    const int64_t lines = end - line;
    std::fill_n(ends_[0], lines, 0);
    std::fill_n(ends_[1], lines, 0);
    if (by_runs(number)) {
      const int64_t count = merge_runs<true>();
      taker_.take(before, count, {idx_, kept_a_, kept_b_});
      int64_t common = 0;
      for (int64_t i = line; i < end; ++i) {
        common += ends_[0][i - line];
        const int64_t both = int64_t{of_a[i + 1]} - of_a[line] + of_b[i + 1] - of_b[line];
        ptr[i + 1] = static_cast<index_t>(before + (kUnion ? both - common : common));
      }
      return count;
    }
    const Counts counts = merge_steps<true>();
    give(counts, before);
    int32_t last = 0;
    for (int64_t i = 0; i < lines; ++i) {
      const int32_t second = ends_[1][i], first = static_cast<int32_t>(counts.first);
      last = std::max({last, ends_[0][i], second > 0 ? second + first : 0});
      ptr[line + 1 + i] = static_cast<index_t>(before + last);
    }
    return counts.first + counts.second;
  }

  // Merges entries [p, end_p) of a with [q, end_q) of b, which are parts of one line.
  int64_t merge_part(int64_t p, int64_t end_p, int64_t q, int64_t end_q, int64_t before) {
    const int64_t number = batches_++;
    if (takes_branches(number)) {
      const index_t of_a[] = {static_cast<index_t>(p), static_cast<index_t>(end_p)};
      const index_t of_b[] = {static_cast<index_t>(q), static_cast<index_t>(end_q)};
      index_t ptr[2];
      return by_branches(number, {of_a, of_b, 1, ptr}, before);
    }
    a_.take_part(p, end_p);
    b_.take_part(q, end_q);
    if (by_runs(number)) {
      const int64_t count = merge_runs<false>();
      taker_.take(before, count, {idx_, kept_a_, kept_b_});
      return count;
    }
    const Counts counts = merge_steps<false>();
    give(counts, before);
    return counts.first + counts.second;
  }

 private:
  static constexpr int64_t kMostLines = 1024;
  static constexpr int64_t kFew = 4;  // how many times as many entries the other operand has
  static constexpr int64_t kTogether = 8;
  static constexpr int64_t kSampled = 32;  // one batch in kSampled is a sample for the others
  static constexpr int64_t kHalf = kEntries + kTogether;  // elements that one half makes, at most
  static constexpr int kShift = 48;
  static constexpr int64_t kIndex = (int64_t{1} << kShift) - 1;

  // The keys of one operand's entries, what is kept of them, and one key above all.
  struct Side {
    explicit Side(const Source& from) : source(from) {}

    // False if an index is too large for a key.
    bool take_lines(int64_t line, int64_t end) {
      const index_t* const ptr = source.lines.ptr;
      const int64_t origin = ptr[line];
      size = ptr[end] - origin;
      const index_t* const idx = source.lines.idx + origin;
      const bool readable = origin + size + kTogether <= source.lines.nse;
      for (int64_t i = line; i < end; ++i) {
        const int64_t base = (i - line) << kShift, stop = ptr[i + 1] - origin;
        int64_t p = ptr[i] - origin;
        if (readable) {
          // Also reads some entries after the end of the line, and the next line writes over their
          // keys. So only a long line takes a branch.
          do {
            for (int64_t l = 0; l < kTogether; ++l) keys[p + l] = base | idx[p + l];
            p += kTogether;
          } while (p < stop);
        } else {
          for (; p < stop; ++p) keys[p] = base | idx[p];
        }
      }
      keep(origin);
      if constexpr (sizeof(index_t) == 4) return true;
      index_t any = 0;
      for (int64_t p = 0; p < size; ++p) any |= idx[p];
      return any <= kIndex;
    }

    void take_part(int64_t first, int64_t last) {
      size = last - first;
      std::copy_n(source.lines.idx + first, size, keys);
      keep(first);
    }

    int64_t keys[kEntries + kTogether];
    T kept[kEntries + kTogether];
    const Source source;
    int64_t size;

   private:
    void keep(int64_t origin) {
      keys[size] = std::numeric_limits<int64_t>::max();
      kept[size] = T{};
      if (source.lines.order != nullptr) {
        for (int64_t p = 0; p < size; ++p) kept[p] = source.at(origin + p);
      } else {
        for (int64_t p = 0; p < size; ++p) kept[p] = source.of_entry(origin + p);
      }
    }
  };

  // The next entries of a merge, and the number of the elements so far.
  struct Step {
    int64_t p, q, next;
  };
  struct Counts {
    int64_t first, second;
  };

  // Makes the next element of half kWhich, of whole lines or of a part of one line.
  template <int kWhich, bool kLines>
  SPGRAD_INLINE void step(Step& at) {
    const int64_t of_a = a_.keys[at.p], of_b = b_.keys[at.q];
    const bool in_a = of_a <= of_b, in_b = of_b <= of_a;
    const int64_t key = in_a ? of_a : of_b, to = kWhich * kHalf + at.next;
    const T from_a = a_.kept[at.p], from_b = b_.kept[at.q];
    idx_[to] = static_cast<index_t>(kLines ? key & kIndex : key);
    kept_a_[to] = kUnion ? Source::if_present(from_a, in_a) : from_a;
    kept_b_[to] = kUnion ? Source::if_present(from_b, in_b) : from_b;
    at.next += kUnion || (in_a && in_b);
    if constexpr (kLines) ends_[kWhich][key >> kShift] = static_cast<int32_t>(at.next);
    at.p += in_a;
    at.q += in_b;
  }

  static SPGRAD_INLINE bool more(const Step& at, int64_t end_p, int64_t end_q) {
    return kUnion ? at.p + at.q < end_p + end_q : at.p < end_p && at.q < end_q;
  }

  // The number of a's keys among the `steps` least keys of both operands. Odeh, Green, Mwassi,
  // Shmueli and Birk 2012, "Merge path".
  int64_t of_a_among(int64_t steps) const {
    int64_t p = std::max<int64_t>(0, steps - b_.size), limit = std::min(steps, a_.size);
    while (p < limit) {
      const int64_t middle = p + (limit - p) / 2;
      if (a_.keys[middle] < b_.keys[steps - 1 - middle]) {
        p = middle + 1;
      } else {
        limit = middle;
      }
    }
    return p;
  }

  // Merges the keys by steps.
  template <bool kLines>
  Counts merge_steps() {
    const int64_t steps = (a_.size + b_.size) / 2, end_p = a_.size, end_q = b_.size;
    int64_t p = of_a_among(steps);
    const int64_t q = steps - p;
    p += q > 0 && p < end_p && a_.keys[p] == b_.keys[q - 1];  // equal keys stay together
    Step first{0, 0, 0}, second{p, q, 0};
    while (more(first, p, q) && more(second, end_p, end_q)) {
      step<0, kLines>(first);
      step<1, kLines>(second);
    }
    while (more(first, p, q)) step<0, kLines>(first);
    while (more(second, end_p, end_q)) step<1, kLines>(second);
    return {first.next, second.next};
  }

  void give(Counts counts, int64_t before) const {
    taker_.take(before, counts.first, {idx_, kept_a_, kept_b_});
    taker_.take(before + counts.first, counts.second,
                {idx_ + kHalf, kept_a_ + kHalf, kept_b_ + kHalf});
  }

  // Whether the branches of a batch are observed; whether it is merged by branches.
  static bool observes(int64_t number) { return number % kSampled == 1; }
  bool takes_branches(int64_t number) const {
    if (a_.source.lines.order != nullptr || b_.source.lines.order != nullptr) return false;
    return observes(number) || branches_.predictable();
  }

  // Elements go straight to their places, but those of a sample, a quarter of the lines of a batch,
  // into the first-level cache first.
  int64_t by_branches(int64_t number, const Stretch<index_t>& lines, int64_t before) {
    const int64_t sample = observes(number) ? (lines.count + 3) / 4 : 0;
    const auto write = [&](int64_t place, index_t index, T from_a, T from_b) {
      idx_[place] = index;
      kept_a_[place] = from_a;
      kept_b_[place] = from_b;
    };
    const Stretch<index_t> first{lines.of_a, lines.of_b, sample, lines.ptr};
    const int64_t observed = branches_.template merge<true>(first, before, write);
    taker_.take(before, observed, {idx_, kept_a_, kept_b_});
    const Stretch<index_t> rest{lines.of_a + sample, lines.of_b + sample, lines.count - sample,
                                lines.ptr + sample};
    return observed + taker_.merge(branches_, rest, before + observed);
  }

  // Whether it is faster to merge the keys of a batch by runs: where one operand has far fewer
  // keys, and where a sample of the keys of both is followed by several of the same operand.
  bool by_runs(int64_t number) {
    constexpr int64_t kSamples = 16;
    if (a_.size <= b_.size / kFew || b_.size <= a_.size / kFew) return true;
    if (number % kSampled == 0) {
      int64_t followed = 0;
      for (int64_t i = 0; i < kSamples; ++i) {
        const Side &of = i % 2 ? a_ : b_, &other = i % 2 ? b_ : a_;
        const int64_t p = of.size * i / kSamples, last = std::min(p + kTogether, of.size) - 1;
        const int64_t* const end = other.keys + other.size;
        const int64_t* const next = std::lower_bound(other.keys, end, of.keys[p]);
        followed += *next > of.keys[last];
      }
      long_runs_ = followed >= kSamples / 2;
    }
    return long_runs_;
  }

  // Makes elements from `next` on of the keys from p on that are less than `limit`, and returns
  // their number. Also writes some elements after them.
  template <bool kLines>
  SPGRAD_INLINE int64_t copy_run(const Side& of, int64_t p, int64_t limit, T* kept, T* other,
                                 int64_t next) {
    const int64_t begin = p;
    for (int64_t count = kTogether; count == kTogether; p += count, next += count) {
      count = 0;
      for (int64_t l = 0; l < kTogether; ++l) count += of.keys[p + l] < limit;
      for (int64_t l = 0; kUnion && l < kTogether; ++l) {
        idx_[next + l] = static_cast<index_t>(kLines ? of.keys[p + l] & kIndex : of.keys[p + l]);
        kept[next + l] = of.kept[p + l];
        other[next + l] = Source::if_present(T{}, false);
      }
    }
    return p - begin;
  }

  // Merges the keys by runs; in ends_[0] it counts the keys of each line that both operands have.
  template <bool kLines>
  int64_t merge_runs() {
    std::fill_n(a_.keys + a_.size, kTogether, std::numeric_limits<int64_t>::max());
    std::fill_n(b_.keys + b_.size, kTogether, std::numeric_limits<int64_t>::max());
    int64_t p = 0, q = 0, next = 0;
    while (kUnion ? p < a_.size || q < b_.size : p < a_.size && q < b_.size) {
      const int64_t of_a = copy_run<kLines>(a_, p, b_.keys[q], kept_a_, kept_b_, next);
      p += of_a;
      next += kUnion ? of_a : 0;
      const int64_t of_b = copy_run<kLines>(b_, q, a_.keys[p], kept_b_, kept_a_, next);
      q += of_b;
      next += kUnion ? of_b : 0;
      if (p < a_.size && a_.keys[p] == b_.keys[q]) {
        const int64_t key = a_.keys[p];
        idx_[next] = static_cast<index_t>(kLines ? key & kIndex : key);
        kept_a_[next] = a_.kept[p++];
        kept_b_[next++] = b_.kept[q++];
        if constexpr (kLines) ++ends_[0][key >> kShift];
      }
    }
    return next;
  }

  Side a_, b_;
  const Taker<kUnion, index_t, T>& taker_;
  int64_t batches_ = 0;
  Branches<kUnion, index_t, T> branches_;
  bool long_runs_ = false;
  int32_t ends_[2][kMostLines];  // of each half, by line: the number of elements so far
  index_t idx_[2 * kHalf];       // the elements of both halves
  T kept_a_[2 * kHalf], kept_b_[2 * kHalf];
};

}  // namespace spgrad
