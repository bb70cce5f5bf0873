// How products read and write memory. Contracts are in traffic.h, and in kernels/reference.
#include "reading/traffic.h"

#include <algorithm>

#include "common/dispatch.h"
#include "common/targets.h"
#include "reading/locality.h"
#include "reading/machine.h"

namespace spgrad {

namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kBlockVectors = 8;  // of columns, in the widest block of a product

// The bytes of a cache that are left for x, because idx, val and y pass through the cache too.
double room(int64_t bytes) { return 0.75 * static_cast<double>(bytes); }

int64_t row_bytes(const Tensor& x) {
  return num_columns(x) * static_cast<int64_t>(x.element_size());
}

// Shares of the entries whose row of x is not in a cache, for whole rows and for rows of a tile.
struct Share {
  double rows = 0, tiles = 0;

  double saved() const { return rows - tiles; }
};

// The same for the first-level and the second-level cache.
struct Misses {
  Share first, second;
};

// How often a row of x is used.
double uses_of(const Tensor& idx, const Tensor& x) {
  return static_cast<double>(idx.numel()) / static_cast<double>(std::max<int64_t>(x.size(0), 1));
}

bool are_floats(const Tensor& x) {
  return x.scalar_type() == ScalarType::Float || x.scalar_type() == ScalarType::Double;
}

// Whether the processor looks far ahead by itself where rows of x are less than a cache line: in
// sums of float32 and float64, an entry takes few instructions. Rows of half a line are an
// exception where rows of A are short, because it foresees their ends wrongly.
bool loads_ahead(const Tensor& idx, const Tensor& x, RowUse use) {
  constexpr int64_t kShort = 12, kHalf = kLine / 2;
  if (!use.sums_only || !are_floats(x)) return false;
  return row_bytes(x) != kHalf || idx.numel() > kShort * use.lines;
}

// Rows of less than two cache lines are looked at if x is at least a quarter of the shared cache,
// and those of a line or more also if they are used so seldom that most may come from memory. The
// processor itself loads many such rows ahead, which suffices if the shared cache has them; it
// loads as many of less than 8 bytes as prefetches would.
bool are_looked_at(const Tensor& idx, const Tensor& x, RowUse use) {
  constexpr double kSeldom = 8;
  constexpr int64_t kLeast = 8;
  const int64_t row = row_bytes(x), lines = row / kLine, bytes = x.size(0) * row;
  const bool large = 4 * bytes >= shared_bytes();
  if (lines == 0) return row >= kLeast && large && !loads_ahead(idx, x, use);
  if (lines == 1 && !large && uses_of(idx, x) > kSeldom) return false;
  return static_cast<double>(bytes) > room(near_bytes());
}

Misses misses_of(const Tensor& idx, const Tensor& x, RowUse use) {
  if (!are_looked_at(idx, x, use)) return {};
  const auto row = static_cast<double>(std::max(row_bytes(x), kLine));
  const Footprint footprint = footprint_of(idx);
  const auto share = [&](double bytes) -> Share {
    return {.rows = footprint.misses(bytes / row), .tiles = footprint.misses(bytes / kTileBytes)};
  };
  return {.first = share(room(nearest_bytes())), .second = share(room(near_bytes()))};
}

// Whether tiles save more time than they cost. They save cache misses; they cost a copy of x, and
// one more pass over the entries for every tile. The unit is the cost of a row that is in the
// second-level cache and not in the first; far_cost() is that of one which is in neither.
bool worth_tiling(const Misses& misses, const Tensor& idx, const Tensor& x) {
  constexpr double kPass = 0.55, kCopy = 3;
  if (row_bytes(x) < 2 * kTileBytes) return false;
  const double saved = misses.first.saved() + far_cost() * misses.second.saved();
  return saved > kPass + kCopy * (1 + far_cost()) / uses_of(idx, x);
}

// Prefetching a row that is in the cache costs about as much as loading it once more. So
// prefetching pays only if rows are missing from the cache often enough. If an entry takes few
// instructions, such as two loads and two multiply-adds, the processor itself loads the rows of
// many later entries ahead, and prefetching gains less. By measurement on an Intel Xeon so also
// with rows of tiles; on AMD's processors those are prefetched like whole rows.
bool worth_prefetching(double missing, const Tensor& x, bool tiled, RowUse use) {
  constexpr double kOften = 0.125, kMostly = 0.5;
  const int64_t row = tiled && shared_is_far() ? kTileBytes : row_bytes(x);
  return missing > (row < (use.sums_only ? 4 : 2) * kLine ? kMostly : kOften);
}

// Whether many of the rows of x that may be staged are not in the cache.
bool are_scattered(const Tensor& idx, const Tensor& x, RowUse use) {
  constexpr double kOften = 0.25;
  const int64_t row = row_bytes(x);
  if (!use.sums_only || row > kStagedBytes || gathers_fast) return false;
  if (2 * x.size(0) * row <= near_bytes()) return false;
  return footprint_of(idx).misses(room(near_bytes()) / kLine) > kOften;
}

// Staging joins the entries of short rows to whole registers, and reads no row of x twice; long
// rows fill registers by themselves.
bool worth_staging(const Tensor& idx, const Tensor& x, RowUse use, bool scattered) {
  constexpr int64_t kShort = 160, kLong = 640;  // bytes of values in a row
  constexpr int64_t kFew = 10;                  // entries of a row, where those of x have 16 bytes
  const int64_t row = row_bytes(x);
  if (!use.sums_only || row == 0 || row > kStagedBytes || gathers_fast) return false;
  if (vector_bytes() == 32)
    return false;  // by measurement, so few entries load as fast as they copy
  if (row == kStagedBytes) return idx.numel() <= kFew * use.lines;
  const auto element = static_cast<int64_t>(x.element_size());
  return idx.numel() * element <= (scattered && row == 4 ? kLong : kShort) * use.lines;
}

// The bytes of columns and values.
int64_t entry_bytes(const Tensor& idx, const Tensor& x) {
  return idx.numel() * static_cast<int64_t>(idx.element_size() + x.element_size());
}

// Whether the shared cache is likely to hold columns and values. It holds other data too, and may
// have lost what takes a quarter of it.
bool are_cached(const Tensor& idx, const Tensor& x) {
  return 4 * entry_bytes(idx, x) <= shared_bytes();
}

// With a few columns, a product may wait for the columns and values of A. With more, it waits for
// rows of x.
bool may_wait_for_entries(const Tensor& x, RowUse use) {
  constexpr int64_t kFew = 32;
  return use.sums_only && row_bytes(x) <= kFew;
}

// Whether columns and values come from memory, or from a shared cache that is far. The second-level
// cache has lost them if they have several times its bytes.
bool are_distant(const Tensor& idx, const Tensor& x, RowUse use) {
  constexpr int64_t kFar = 4;  // times the second-level cache
  if (!may_wait_for_entries(x, use)) return false;
  return entry_bytes(idx, x) > (shared_is_far() ? kFar * near_bytes() : shared_bytes());
}

// Entries that rows have in the mean from which on columns and values are prefetched: in shorter
// rows the prefetches take more time than they save. One column takes little time for each row, as
// long as x does not come from memory; then staged rows probably have more loads of x under way.
int64_t shortest_fetched(const Tensor& x) {
  constexpr int64_t kFar = 24, kLeast = 16, kOfFour = 5, kOfEight = 4;
  if (shared_is_far()) return kFar;
  const auto element = static_cast<int64_t>(x.element_size());
  if (row_bytes(x) != element || 4 * x.size(0) * element > shared_bytes()) return kLeast;
  return element == 4 ? kOfFour : kOfEight;
}

// Whether each register of entries prefetches a later one, on a processor that gathers fast. One
// column of values of four bytes fills a line of columns and a line of values with each register.
bool worth_fetching_along(const Tensor& idx, const Tensor& x, RowUse use) {
  constexpr int64_t kLeast = 5, kFew = 6;  // entries of a row
  if (row_bytes(x) == 4) return idx.numel() >= kLeast * use.lines;
  return idx.numel() >= kFew * use.lines && entry_bytes(idx, x) > 2 * near_bytes();
}

// The processor itself loads columns and values ahead, unless rows of x are missing from its first
// cache: then the loads that wait for them keep it from looking far enough ahead. From a shared
// cache that is far, it probably never does; there, missing rows of x are a reason against
// prefetches, which probably wait in the same buffers.
bool worth_fetching(const Tensor& idx, const Tensor& x, RowUse use) {
  constexpr double kOften = 0.25;
  const int64_t row = row_bytes(x);
  if (row == 0 || !may_wait_for_entries(x, use)) return false;
  if (gathers_fast) return worth_fetching_along(idx, x, use);
  if (idx.numel() < shortest_fetched(x) * use.lines) return false;
  const double rows = room(nearest_bytes()) / static_cast<double>(row);
  const auto are_missing = [&] {
    return static_cast<double>(x.size(0)) > rows && footprint_of(idx).misses(rows) > kOften;
  };
  if (!shared_is_far()) return !are_cached(idx, x) && are_missing();
  return entry_bytes(idx, x) > 2 * near_bytes() && (are_distant(idx, x, use) || !are_missing());
}

// How far ahead rows are prefetched. The page of a row has to stay in the TLB from the prefetch to
// the use. The processor uses it for entries further on at the same time, so half of the pages are
// counted, less those of columns, values and y. A second prefetch for each row pays if many rows
// come from memory, in sums alone a third, or if most come from the shared cache and have more than
// two cache lines. Rows of less than a line are prefetched once.
Ahead how_far(double missing, const Tensor& x, bool tiled, RowUse use) {
  constexpr int64_t kBytes = 8 << 10, kOthers = 4, kLeast = 16, kFewLines = 2;
  constexpr double kThird = 0.3, kHalf = 0.5, kMost = 0.7;
  Ahead ahead{.bytes = kBytes};
  const int64_t pages = nearest_pages(), row = tiled ? kTileBytes : row_bytes(x);
  if (pages > 0) ahead.most = std::max(pages / 2 - kOthers, kLeast);
  const bool from_memory = 2 * x.size(0) * (tiled ? kTilesAtOnce : 1) * row > shared_bytes();
  const double enough = from_memory ? (use.sums_only ? kThird : kHalf) : kMost;
  const bool long_enough = from_memory || row > kFewLines * kLine;
  ahead.twice = fetches_twice && row >= kLine && long_enough && missing > enough;
  return ahead;
}

// Whether a block of columns of all rows of x is read before the next block, instead of a row to
// its end. By measurement on an AMD EPYC with Zen 4, so if nearly all rows are prefetched from
// beyond the second-level cache: probably because rows of the next block are under way to it then.
bool worth_reading_by_blocks(double missing) {
  constexpr double kNearlyAll = 0.8;
  return fetches_twice && missing > kNearlyAll;
}

// Whether most entries are followed by one in the next column, as in dense rows and wide blocks.
bool are_runs(const Tensor& idx) {
  constexpr int64_t kLooks = 256;
  const int64_t places = idx.numel() - 1;
  if (places <= 0) return false;
  int64_t found = 0;
  dispatch_index(idx.scalar_type(), [&]<class index_t>() {
    const auto* const columns = data<index_t>(idx);
    for (int64_t look = 0; look < kLooks; ++look) {
      const auto* const entry = columns + spread(look, places);
      found += entry[1] - entry[0] == 1;
    }
  });
  return 10 * found > 7 * kLooks;
}

// Whether rows of x that are wider than a block of columns come from afar in long pieces of memory,
// which is read fastest in its order. By measurement on an AMD EPYC with Zen 3, whole rows of x
// then take 0.8 to 1.1 of the time of blocks of columns with runs of four entries, and half of it
// with long runs; but up to 1.3 times the time with runs of two, and 1.8 times where columns stand
// in any order.
bool come_in_order(const Misses& misses, const Tensor& idx, const Tensor& x) {
  const bool wide = row_bytes(x) > kBlockVectors * vector_bytes();
  return wide && are_floats(x) && worth_reading_by_blocks(misses.second.rows) && are_runs(idx);
}

// Whether each row of x is prefetched to its end with its first block of columns, and both blocks
// of some rows of y come before the next rows. By measurement on an AMD EPYC with Zen 4, so if
// nearly all rows come from memory, as long as the second-level cache has room for the page table
// of x. Otherwise more prefetches wait for each page, probably so long that fewer pages are under
// way.
bool worth_reading_by_pairs(double missing, const Tensor& x, RowUse use) {
  constexpr int64_t kPage = 4096, kEntry = 8;  // bytes of a page, and of its entry in the table
  if (!use.sums_only || !are_floats(x) || !worth_reading_by_blocks(missing)) return false;
  const int64_t row = row_bytes(x), block = kBlockVectors * vector_bytes();
  const int64_t bytes = x.size(0) * row;
  if (row <= block || row > 2 * block || bytes <= shared_bytes()) return false;
  return static_cast<double>(bytes / kPage * kEntry) < room(near_bytes());
}

Traffic choose(const Misses& misses, const Tensor& idx, const Tensor& x, RowUse use) {
  const bool whole_rows = come_in_order(misses, idx, x);
  const bool tiled = use.may_tile && !whole_rows && worth_tiling(misses, idx, x);
  const double missing = tiled ? misses.second.tiles : misses.second.rows;
  const bool scattered = are_scattered(idx, x, use);
  const bool ahead = worth_prefetching(missing, x, tiled, use);
  return {.ahead = ahead ? how_far(missing, x, tiled, use) : Ahead{},
          .tiled = tiled,
          .staged = worth_staging(idx, x, use, scattered),
          .scattered = scattered,
          .by_blocks = !tiled && worth_reading_by_blocks(missing),
          .by_pairs = !tiled && !whole_rows && worth_reading_by_pairs(missing, x, use),
          .whole_rows = whole_rows,
          .distant = are_distant(idx, x, use),
          .fetched = worth_fetching(idx, x, use),
          .cached = are_cached(idx, x)};
}

Tensor traffic(const Tensor& idx, const Tensor& x, bool may_tile, int64_t lines) {
  check_tensor(idx, 1, idx.scalar_type(), "idx");
  STD_TORCH_CHECK(x.dim() == 2, "spgrad: `x` has ", x.dim(), " dimensions, not 2.");
  const RowUse use{.sums_only = true, .may_tile = may_tile, .lines = lines};
  const Misses misses = misses_of(idx, x, use);
  const Traffic chosen = choose(misses, idx, x, use);
  Tensor out = empty(x, {11}, ScalarType::Double);
  double* const found = mutable_data<double>(out);
  found[0] = static_cast<double>(near_bytes());
  found[1] = misses.second.rows;
  found[2] = misses.second.tiles;
  found[3] = static_cast<double>(chosen.ahead.bytes);
  found[4] = chosen.tiled;
  found[5] = chosen.staged;
  found[6] = chosen.fetched;
  found[7] = chosen.ahead.twice;
  found[8] = misses.first.rows;
  found[9] = misses.first.tiles;
  found[10] = chosen.whole_rows ? 3 : chosen.by_pairs ? 2 : chosen.by_blocks;
  return out;
}

Tensor assume_cache(const Tensor& like, int64_t size) {
  STD_TORCH_CHECK(size >= 0, "spgrad: `size` is ", size, "; 0 or more is accepted.");
  assume_near_bytes(size);
  Tensor out = empty(like, {1}, ScalarType::Long);
  *mutable_data<int64_t>(out) = near_bytes();
  return out;
}

}  // namespace

Traffic choose_traffic(const Tensor& idx, const Tensor& x, RowUse use) {
  return choose(misses_of(idx, x, use), idx, x, use);
}

bool worth_streaming(const Tensor& y) {
  const auto address = reinterpret_cast<uintptr_t>(y.mutable_data_ptr());
  return row_bytes(y) % kLine == 0 && address % kLine == 0 &&
         y.size(0) * row_bytes(y) >= 4 * near_bytes();
}

bool are_far(const Tensor& val) {
  return 2 * val.numel() * static_cast<int64_t>(val.element_size()) > near_bytes();
}

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("traffic", SPGRAD_BOX(&traffic));
  m.impl("assume_cache", SPGRAD_BOX(&assume_cache));
}

}  // namespace spgrad
