// Rows so long that one thread would work on them while the others wait.
#pragma once
#include <vector>

#include "dispatch.h"

namespace spgrad {

// Rows (m) of a view as lines: a long row is several of them, whose results are joined afterwards.
// How a row is cut depends on the view alone, and so does the order of its sum. O(m) time; memory
// only where there is a long row.
template <class index_t>
class SplitRows {
 public:
  // Consecutive lines that are whole rows, or pieces of one row.
  struct Part {
    int64_t first, last;  // lines
    int64_t row;          // of line `first`
    int64_t slot;         // of line `first` among the pieces; -1 for whole rows
  };

  SplitRows(const index_t* ptr, int64_t m) : starts_(ptr), lines_(m) {
    const int64_t nse = m > 0 ? int64_t{ptr[m]} : 0;
    const int64_t longest = std::max<int64_t>(kLeast, nse / kShare);
    if (nse <= longest) return;
    int64_t whole = 0;  // the first row of those that are whole
    for (int64_t i = 0; i < m; ++i) {
      const int64_t begin = ptr[i], length = ptr[i + 1] - begin;
      if (length <= longest) continue;
      const int64_t pieces = (length + longest / 2 - 1) / (longest / 2);
      add_whole(ptr, whole, i);
      parts_.push_back({line(), line() + pieces, i, slots_});
      for (int64_t b = 0; b < pieces; ++b) {
        split_.push_back(static_cast<index_t>(begin + length * b / pieces));
      }
      slots_ += pieces;
      whole = i + 1;
    }
    if (parts_.empty()) return;
    add_whole(ptr, whole, m);
    lines_ = line();
    split_.push_back(ptr[m]);
    starts_ = split_.data();
  }
  SplitRows(const SplitRows&) = delete;
  SplitRows& operator=(const SplitRows&) = delete;

  bool any() const { return slots_ > 0; }
  const index_t* starts() const { return starts_; }  // (lines + 1,)
  int64_t lines() const { return lines_; }
  int64_t slots() const { return slots_; }

  // Calls f(part) on the parts of lines [first, last), in parallel over equal shares of all lines.
  template <class F>
  void parallel(int64_t cost, const F& f) const {
    parallel_rows(starts_, lines_, cost, [&](int64_t first, int64_t last) {
      if (!any()) return f(Part{first, last, first, -1});
      auto part = std::upper_bound(parts_.begin(), parts_.end(), first,
                                   [](int64_t line, const Part& p) { return line < p.last; });
      for (; first < last; ++part) {
        const int64_t end = std::min(last, part->last), skipped = first - part->first;
        f(Part{first, end, part->slot < 0 ? part->row + skipped : part->row,
               part->slot < 0 ? -1 : part->slot + skipped});
        first = end;
      }
    });
  }

  // Entries and lines of each of `workers` threads: shares (2, workers), preallocated.
  void measure(int64_t workers, int64_t* shares) const {
    const int64_t work = lines_ == 0 ? 0 : starts_[lines_] + lines_;
    const int64_t each = (work + workers - 1) / workers;
    for (int64_t w = 0; w < workers; ++w) {
      const int64_t from = row_at_work(starts_, lines_, std::min(w * each, work));
      const int64_t to = row_at_work(starts_, lines_, std::min((w + 1) * each, work));
      shares[w] = lines_ == 0 ? 0 : int64_t{starts_[to]} - starts_[from];
      shares[workers + w] = to - from;
    }
  }

  // Rows of y (m, n) that were split: the sums of their pieces (slots, n), in order.
  template <class scalar_t>
  void join(const scalar_t* pieces, int64_t n, scalar_t* y) const {
    for (const Part& part : parts_) {
      if (part.slot < 0) continue;
      scalar_t* const out = y + part.row * n;
      const scalar_t* in = pieces + part.slot * n;
      std::copy_n(in, n, out);
      for (int64_t b = 1; b < part.last - part.first; ++b) {
        in += n;
        for (int64_t j = 0; j < n; ++j) out[j] = out[j] + in[j];
      }
    }
  }

 private:
  // Entries of a row that is never split; the part of all entries that a longer one may have, so
  // that 64 threads get shares that differ by a tenth at most.
  static constexpr int64_t kLeast = 256, kShare = 2048;

  int64_t line() const { return static_cast<int64_t>(split_.size()); }
  void add_whole(const index_t* ptr, int64_t first, int64_t last) {
    if (first == last) return;
    parts_.push_back({line(), line() + last - first, first, -1});
    split_.insert(split_.end(), ptr + first, ptr + last);
  }

  const index_t* starts_;
  int64_t lines_, slots_ = 0;
  std::vector<index_t> split_;
  std::vector<Part> parts_;
};

}  // namespace spgrad
