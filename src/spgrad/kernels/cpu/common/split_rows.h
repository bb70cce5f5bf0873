// Splits rows that are so long that other threads would wait for the thread that works on such a
// row.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/memory.h"
#include "common/threads.h"

namespace spgrad {

// The m rows of a view. Long rows are cut into pieces, whose sums are added afterwards. How a row
// is cut depends on the view and on `cost`, the multiply-adds of an entry, alone, and so does the
// order in which its terms are added. O(m) time; memory only for long rows.
template <class index_t>
class SplitRows {
 public:
  // Lines [first, last) of the pointers `starts`: rows of the view, or the pieces of one row.
  struct Part {
    const index_t* starts;
    int64_t first, last;
    int64_t row = -1;  // the row that was cut; -1 for whole rows
    int64_t slot = 0;  // of the row's first piece, among the pieces of all rows
  };

  SplitRows(const index_t* ptr, int64_t m, int64_t cost = kSerialWork) {
    const int64_t nse = m > 0 ? int64_t{ptr[m]} : 0;
    const int64_t average = nse / std::max<int64_t>(m, 1);
    const int64_t longest = std::max({kLeast, kSerialWork / (kPart * std::max<int64_t>(cost, 1)),
                                      nse / kShare, std::min(2 * average, 2 * nse / kShare)});
    int64_t whole = 0;  // the first row behind the last long one
    const auto next = [&](int64_t i) {
      return nse > longest ? next_longer(ptr, i, m, static_cast<index_t>(longest)) : m;
    };
    for (int64_t i = next(0); i < m; i = next(i + 1)) {
      const int64_t begin = ptr[i], length = ptr[i + 1] - begin;
      add({.starts = ptr, .first = whole, .last = i});
      whole = i + 1;
      const int64_t pieces = (length + longest / 2 - 1) / (longest / 2);
      auto& starts = cuts_.emplace_back(pieces + 1);
      for (int64_t piece = 0; piece <= pieces; ++piece) {
        starts[piece] = static_cast<index_t>(begin + length * piece / pieces);
      }
      add({.starts = starts.data(), .first = 0, .last = pieces, .row = i, .slot = slots_});
      slots_ += pieces;
    }
    add({.starts = ptr, .first = whole, .last = m});
  }
  SplitRows(const SplitRows&) = delete;
  SplitRows& operator=(const SplitRows&) = delete;

  int64_t slots() const { return slots_; }

  // Calls f(part) in parallel, on lines with equal shares of the number of entries plus lines.
  // `cost` is the number of multiply-adds of an entry.
  template <class F>
  void parallel(int64_t cost, const F& f) const {
    const int64_t grain = kSerialWork / std::max<int64_t>(cost, 1) + 1;
    if (work_ <= grain) return share(0, work_, f);
    torch::stable::parallel_for(0, work_, grain,
                                [&](int64_t first, int64_t last) { share(first, last, f); });
  }

  // Writes the numbers of entries and of lines of each of `workers` threads to shares
  // (2, workers).
  void measure(int64_t workers, int64_t* shares) const {
    const int64_t each = (work_ + workers - 1) / workers;
    std::fill_n(shares, 2 * workers, 0);
    for (int64_t i = 0; i < workers; ++i) {
      share(std::min(i * each, work_), std::min((i + 1) * each, work_), [&](const Part& part) {
        shares[i] += part.starts[part.last] - part.starts[part.first];
        shares[workers + i] += part.last - part.first;
      });
    }
  }

  // Calls f(row, slot, pieces) on every row that was cut, with the slot of its first piece.
  template <class F>
  void for_cut(const F& f) const {
    for (const auto& [part, _] : parts_) {
      if (part.row >= 0) f(part.row, part.slot, part.last);
    }
  }

  // Writes the rows of y (m, n) that were cut: the sums of their pieces (slots, n), in order.
  template <class scalar_t>
  void join(const scalar_t* pieces, int64_t n, scalar_t* y) const {
    for_cut([&](int64_t row, int64_t slot, int64_t count) {
      scalar_t* const out = y + row * n;
      const scalar_t* in = pieces + slot * n;
      std::copy_n(in, n, out);
      for (int64_t piece = 1; piece < count; ++piece) {
        in += n;
        for (int64_t j = 0; j < n; ++j) out[j] = out[j] + in[j];
      }
    });
  }

 private:
  // A row is cut if it has more than kLeast entries, takes more than 1 / kPart of the least work
  // that a thread gets, and has more than 1 / kShare of all entries. Up to twice that share, it is
  // also longer than two average rows: where all rows are about as long, whole rows share out
  // evenly. Then the shares of 64 threads differ by an eighth at most.
  static constexpr int64_t kLeast = 256, kPart = 8, kShare = 1024;

  struct Placed {
    Part part;
    int64_t work;  // before it
  };

  // The number of entries and lines of a part before one of its lines.
  static int64_t work_of(const Part& part, int64_t line) {
    return part.starts[line] - part.starts[part.first] + line - part.first;
  }
  // The first line whose work begins at or after `work`.
  static int64_t line_at(const Part& part, int64_t work) {
    if (work <= 0) return part.first;
    if (work >= work_of(part, part.last)) return part.last;
    const index_t* const starts = part.starts + part.first;
    return part.first + row_at_work(starts, part.last - part.first, work + starts[0]);
  }

  void add(const Part& part) {
    if (part.first == part.last) return;
    parts_.push_back({part, work_});
    work_ += work_of(part, part.last);
  }

  // Calls f(part) on the lines whose work begins in [first, last).
  template <class F>
  void share(int64_t first, int64_t last, const F& f) const {
    auto next =
        std::upper_bound(parts_.begin(), parts_.end(), first,
                         [](int64_t work, const Placed& placed) { return work < placed.work; });
    if (next != parts_.begin()) --next;
    for (; next != parts_.end() && next->work < last; ++next) {
      Part part = next->part;
      part.first = line_at(next->part, first - next->work);
      part.last = line_at(next->part, last - next->work);
      if (part.first < part.last) f(part);
    }
  }

  int64_t work_ = 0, slots_ = 0;
  List<List<index_t>> cuts_;  // the parts have pointers to elements, which stay where they are
  List<Placed> parts_;
};

}  // namespace spgrad
