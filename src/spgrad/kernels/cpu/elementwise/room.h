// Memory for the elements that the threads of a merge make, which becomes the result.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/arguments.h"
#include "common/memory.h"
#include "common/threads.h"

namespace spgrad {

// Moves `count` elements to places `by` before theirs, with all threads.
template <class T>
void move_down(T* from, int64_t by, int64_t count) {
  if (by == 0) return;
  const Chunks chunks(count);
  if (by * chunks.count() > count) {  // as many at a time as fit before them
    for (int64_t done = 0; done < count; done += by) {
      parallel_entries(std::min(by, count - done), 1, [&](int64_t first, int64_t last) {
        std::copy(from + done + first, from + done + last, from + done + first - by);
      });
    }
    return;
  }
  // Each chunk moves down within its own places first. Its first `by` elements wait elsewhere until
  // the chunk before has left theirs.
  const auto heads = array<T>(chunks.count() * by);
  chunks.for_each([&](int64_t chunk, int64_t begin, int64_t end) {
    std::copy_n(from + begin, by, heads.get() + chunk * by);
    std::copy(from + begin + by, from + end, from + begin);
  });
  chunks.for_each([&](int64_t chunk, int64_t begin, int64_t) {
    std::copy_n(heads.get() + chunk * by, by, from + begin - by);
  });
}

// The elements that the chunks of a merge made: chunk c made base[c + 1] - base[c] elements, and
// wrote them from starts[c] on.
struct Shares {
  List<int64_t> starts, base;
};

// Room for all elements that a merge could make, of T. The elements that it made become a tensor.
template <class T>
class Room {
 public:
  Room(const Tensor& like, int64_t most) : like_(like), most_(most), memory_(sizeof(T) * most) {
    if (memory_.is_kept()) {
      start_ = static_cast<T*>(memory_.start());
    } else {
      memory_ = Memory();
      tensor_ = empty(like, {most});
      start_ = static_cast<T*>(tensor_.mutable_data_ptr());
    }
  }

  T* start() const { return start_; }

  // The elements without gaps. The tensor has memory of its own size; without `fit`, that of a
  // small result of one chunk may be larger.
  Tensor fitted(const Shares& shares, bool fit) && {
    const auto& [starts, base] = shares;
    const int64_t size = base.back();
    // A small part of the memory is copied out of it, so that the next call finds the whole memory.
    // Of several chunks, most elements move in either case.
    const bool leaves = size <= most_ / (starts.size() > 1 ? 2 : 8);
    if (memory_.is_kept() && !leaves) {
      for (size_t chunk = 1; chunk < starts.size(); ++chunk) {
        move_down(start_ + starts[chunk], starts[chunk] - base[chunk],
                  base[chunk + 1] - base[chunk]);
      }
      memory_.trim(sizeof(T) * size);
      return std::move(memory_).become(like_, {size}, like_.scalar_type());
    }
    if (!memory_.is_kept() && starts.size() == 1 && (!fit || tensor_.size(0) == size)) {
      return torch::stable::narrow(tensor_, 0, 0, size);
    }
    Tensor made = empty(like_, {size});
    T* const to = static_cast<T*>(made.mutable_data_ptr());
    parallel_entries(starts.size(), kSerialWork, [&](int64_t first, int64_t last) {
      for (int64_t chunk = first; chunk < last; ++chunk) {
        std::copy_n(start_ + starts[chunk], base[chunk + 1] - base[chunk], to + base[chunk]);
      }
    });
    return made;
  }

 private:
  const Tensor& like_;
  int64_t most_;
  Memory memory_;
  Tensor tensor_;  // if the memory is not kept
  T* start_;
};

}  // namespace spgrad
