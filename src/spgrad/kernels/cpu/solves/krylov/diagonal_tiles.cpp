// Finds what repeats in the values of diagonals, such as those of equations whose coefficients are
// the same everywhere.
#include "solves/krylov/diagonals.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

#include "solves/krylov/vectors.h"

namespace spgrad {
namespace {

// Tiles by their values, compared bit by bit. A table with open addressing holds their numbers.
template <class word_t>
class Tiles {
 public:
  static constexpr int64_t kBytes = kTileRows * sizeof(word_t);

  explicit Tiles(int64_t most) : most_(most), slots_(std::bit_ceil<uint64_t>(2 * most + 2), -1) {}

  // The number of a tile with these values, which is added if it is new; -1 if there are too many.
  int32_t number(const word_t* values, int32_t guess) {
    if (guess >= 0 && same(guess, values)) return guess;
    uint64_t at = hash(values) & (slots_.size() - 1);
    for (; slots_[at] >= 0; at = (at + 1) & (slots_.size() - 1)) {
      if (same(slots_[at], values)) return slots_[at];
    }
    if (count() == most_) return -1;
    slots_[at] = static_cast<int32_t>(count());
    all_.insert(all_.end(), values, values + kTileRows);
    return slots_[at];
  }
  int64_t count() const { return static_cast<int64_t>(all_.size()) / kTileRows; }
  const word_t* data() const { return all_.data(); }

 private:
  bool same(int32_t tile, const word_t* values) const {
    return std::memcmp(all_.data() + tile * kTileRows, values, kBytes) == 0;
  }
  // Eight independent sums, so that a product does not wait for the one before.
  static uint64_t hash(const word_t* values) {
    constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;  // 2^64 over the golden ratio
    uint64_t sums[8] = {};
    for (int64_t i = 0; i < kTileRows; i += 8) {
      for (int64_t l = 0; l < 8; ++l)
        sums[l] = ((sums[l] >> 29) ^ sums[l] ^ values[i + l]) * kFactor;
    }
    uint64_t all = 0;
    for (const uint64_t sum : sums) all = ((all >> 29) ^ all ^ sum) * kFactor;
    return all >> 32;
  }

  int64_t most_;
  List<word_t> all_;
  List<int32_t> slots_;
};

template <class word_t>
bool is_uniform(const word_t* tile) {
  return std::all_of(tile, tile + kTileRows, [&](word_t value) { return value == tile[0]; });
}

// Writes the numbers of all tiles, and ~number for those with one value; false if there are too
// many different ones.
template <class word_t>
bool number_tiles(const word_t* val, int64_t diagonals, int64_t stride, int64_t rows,
                  Tiles<word_t>& tiles, int32_t* numbers) {
  for (int64_t d = 0; d < diagonals; ++d) {
    int32_t before = -1;
    for (int64_t row = 0; row < rows; row += kTileRows) {
      const word_t* values = val + d * stride + row;
      word_t padded[kTileRows] = {};
      if (rows - row < kTileRows) {
        std::copy_n(values, rows - row, padded);
        values = padded;
      }
      before = tiles.number(values, before);
      if (before < 0) return false;
      numbers[row / kTileRows * diagonals + d] = is_uniform(values) ? ~before : before;
    }
  }
  return true;
}

std::tuple<Tensor, Tensor> tiles_of_diagonals(const Tensor& val, int64_t rows, int64_t most) {
  check_tensor(val, 2, val.scalar_type(), "val");
  check_size(val, 1, stride_of(rows), "val");
  const int64_t diagonals = val.size(0);
  Tensor numbers = empty(val, {(rows + kTileRows - 1) / kTileRows, diagonals}, ScalarType::Int);
  Tensor out = empty(val, {0, kTileRows});
  STD_TORCH_CHECK(most >= 0, "spgrad: `most` is ", most, "; 0 or more is accepted.");
  dispatch_real(val, "val", [&]<class scalar_t>() {
    using word_t = std::conditional_t<sizeof(scalar_t) == 4, uint32_t, uint64_t>;
    Tiles<word_t> tiles(most);
    const auto* const values = static_cast<const word_t*>(val.const_data_ptr());
    if (!number_tiles(values, diagonals, stride_of(rows), rows, tiles,
                      mutable_data<int32_t>(numbers))) {
      std::fill_n(mutable_data<int32_t>(numbers), numbers.numel(), 0);
      return;
    }
    out = empty(val, {tiles.count(), kTileRows});
    if (tiles.count() > 0) {
      std::memcpy(out.mutable_data_ptr(), tiles.data(), tiles.count() * Tiles<word_t>::kBytes);
    }
  });
  return {out, numbers};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("tiles_of_diagonals", SPGRAD_BOX(&tiles_of_diagonals));
}

}  // namespace spgrad
