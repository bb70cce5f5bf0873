// Sparse times dense of few columns. Contracts are in spmm.h, spmm_narrow.h and spmv.h; a file of
// its own, because it takes long to compile.
#include <algorithm>
#include <cstdint>

#include "common/targets.h"
#include "products/few_columns/spmm_by_length.h"
#include "products/few_columns/spmm_narrow.h"
#include "products/few_columns/spmm_staged.h"
#include "products/few_columns/spmv.h"
#include "products/spmm.h"
#include "reading/locality.h"
#include "reading/machine.h"

namespace spgrad {
namespace {

// What some of the rows [first, last) are like, as numbers of 32. Rows without entries take no
// time, so pairs and groups of such rows are not counted.
struct RowsOf32 {
  int64_t alike = 0;  // rows as long as the row before
  int64_t same = 0;   // rows that take as many registers of kEntries entries as the row before
  int64_t even = 0;   // groups of four rows of which the longest has at most half of the entries
};
template <int64_t kEntries, class index_t>
RowsOf32 rows_of_32(const index_t* ptr, int64_t first, int64_t last, int64_t looks) {
  looks = std::min(looks, (last - first + 4) / 8);
  const auto steps = [](index_t count) { return (count + kEntries - 1) / kEntries; };
  int64_t pairs = 0, groups = 0;
  RowsOf32 found;
  for (int64_t look = 0; look < looks; ++look) {
    const index_t* const at = ptr + first + spread(look, last - first - 3);
    const index_t one = at[1] - at[0], next = at[2] - at[1], all = at[4] - at[0];
    if (all == 0) continue;
    ++groups;
    found.even += 2 * lengths_of<4>(at).most <= all;
    if (one + next == 0) continue;
    ++pairs;
    found.alike += one == next;
    found.same += steps(one) == steps(next);
  }
  pairs = std::max<int64_t>(pairs, 1);
  groups = std::max<int64_t>(groups, 1);
  return {.alike = 32 * found.alike / pairs,
          .same = 32 * found.same / pairs,
          .even = 32 * found.even / groups};
}

// In how many of 32 registers of `lanes` entries the columns are consecutive: in registers of some
// rows, or at places anywhere, as one row may have most entries; the larger of the two numbers.
template <class index_t, class scalar_t>
int64_t runs_of_32(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last, int64_t looks,
                   int64_t lanes) {
  const int64_t begin = a.ptr[first], count = a.ptr[last] - begin;
  const int64_t end = std::min<int64_t>(a.ptr[last], a.nse - lanes + 1);
  const auto is_run = [&](int64_t p) {
    return p < end && a.idx[p + lanes - 1] - a.idx[p] == lanes - 1;
  };
  int64_t rows = 0, of_rows = 0, anywhere = 0;
  for (int64_t look = 0; look < looks; ++look) {
    const index_t* const at = a.ptr + first + spread(look, last - first);
    const int64_t registers = (at[1] - at[0]) / lanes;
    if (registers > 0) {
      ++rows;
      of_rows += is_run(at[0] + lanes * spread(looks - look, registers));
    }
    anywhere += is_run(begin + spread(look, count));
  }
  if (4 * rows < looks) of_rows = 0;  // too few to tell
  return std::max(32 * of_rows / std::max<int64_t>(rows, 1), 32 * anywhere / looks);
}

// Whether spmv is the fastest way for `rows` rows of one length, which have `count` entries
// together: for short rows of float32 and for rows of one entry of float64, while the shared cache
// has their columns and values. Measured with registers of 64 bytes.
template <int kBytes, class index_t, class scalar_t>
bool takes_many_rows(const Spmm<index_t, scalar_t>& a, int64_t count, int64_t rows) {
  constexpr int64_t kMost = sizeof(scalar_t) == 4 ? 16 : 1;
  return kBytes == 64 && a.n == 1 && count <= kMost * rows && a.traffic.cached;
}

// The way of staged rows, or kAny if staging them does not pay; `rows` rows with `count` entries.
// Four rows of similar lengths take as many registers as the longest of them. This pays where the
// processor foresees wrongly how many a row takes, where loads wait for x, and where one register
// is enough. Rows of unlike lengths are staged if they are short; those whose rows of x have 16
// bytes, which registers load as fast, only if loads wait for x.
template <int kBytes, int kColumns, class index_t, class scalar_t>
FewWay staged_way(const Spmm<index_t, scalar_t>& a, const RowsOf32& found, int64_t count,
                  int64_t rows, bool half) {
  using S = Slots<kBytes, kColumns, scalar_t>;
  constexpr int64_t kOften = 20, kMost = 24;  // of 32
  constexpr int64_t kUneven = 80;             // bytes of values in a row
  if (!a.traffic.staged) return FewWay::kAny;
  const bool even = found.even >= kMost;
  if (half) return even ? FewWay::kStagedHalfEven : FewWay::kStagedHalf;
  const bool foreseen = 4 * count > 3 * S::kEntries * rows && found.same >= kOften;
  if (even && (a.traffic.scattered || !foreseen)) return FewWay::kStagedEven;
  const auto bytes = count * static_cast<int64_t>(sizeof(scalar_t));
  const bool may_be_uneven = S::kRowBytes < kStagedBytes || a.traffic.scattered;
  const bool is_long = kScattersLong<kColumns, scalar_t> && a.traffic.scattered;
  return may_be_uneven && (is_long || bytes <= kUneven * rows) ? FewWay::kStaged : FewWay::kAny;
}

// The way in registers of 32 bytes, of rows of x of at most eight bytes. By measurement on an AMD
// EPYC with Zen 3, code for each length pays only if nearly all rows have one length. (Of float32,
// kAny has such code for groups of rows of one length.)
template <int kEntries, class index_t, class scalar_t>
FewWay way_of_avx2(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last, bool are_short) {
  constexpr int64_t kLooks = 64, kFewer = 16;
  constexpr int64_t kMost = 24, kNearlyAll = sizeof(scalar_t) == 4 ? 32 : 30;  // of 32
  const bool fetched = a.traffic.fetched || a.traffic.distant;
  const int64_t looks = are_short ? kLooks : kFewer;
  const int64_t alike = rows_of_32<kEntries>(a.ptr, first, last, looks).alike;
  if (are_short) return alike >= kNearlyAll ? FewWay::kByLength : FewWay::kAny;
  if (alike >= kMost || runs_of_32(a, first, last, looks, kEntries) >= kMost) {
    return fetched ? FewWay::kRegularFetched : FewWay::kRegular;
  }
  return fetched ? FewWay::kFetched : FewWay::kFourRows;
}

// Whether most of some groups of as many rows as spmv looks at have short rows only.
template <int kRows, int kMost, class index_t>
bool are_groups_short(const index_t* ptr, int64_t first, int64_t last) {
  constexpr int64_t kLooks = 8;
  int64_t found = 0;
  for (int64_t look = 0; look < kLooks && last - first >= kRows; ++look) {
    const index_t* const at = ptr + first + (last - first - kRows) * look / kLooks;
    found += lengths_of<kRows>(at).most <= kMost;
  }
  return 2 * found > kLooks;
}

// The way of one column on a processor that gathers fast. By measurement on an Intel Xeon, code for
// each length and products side by side pay for few entries a row alone, and branches only on
// consecutive columns of float32.
template <int kLanes, class index_t, class scalar_t>
FewWay way_of_gathers(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last, int64_t count,
                      bool are_short) {
  constexpr bool kDouble = sizeof(scalar_t) == 8;
  constexpr int64_t kNearlyAll = 27, kMost = 24;  // of 32
  constexpr int64_t kByCode = kDouble ? 5 : 7;    // entries of a row
  const int64_t rows = last - first, looks = are_short ? 64 : 16;
  if (rows_of_32<kLanes>(a.ptr, first, last, looks).alike >= kNearlyAll) {
    const int64_t length = (count + rows / 2) / rows;
    if (length <= kByCode) {
      return kDouble && (length > 1 || !a.traffic.cached) ? FewWay::kByLength : FewWay::kAny;
    }
  }
  if (kDouble ? 2 * count < 5 * rows
              : are_short && are_groups_short<4 * kLanes, 8>(a.ptr, first, last)) {
    return FewWay::kAny;
  }
  if (!kDouble && !are_short && runs_of_32(a, first, last, looks, kLanes) >= kMost) {
    return a.traffic.cached ? FewWay::kRegular : FewWay::kRegularFetchedAlong;
  }
  return a.traffic.fetched ? FewWay::kFetchedAlong : FewWay::kFourRows;
}

// The way of the rows [first, last).
template <int kBytes, int kColumns, class index_t, class scalar_t>
FewWay choose_way(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  constexpr int64_t kShort = 16;                  // entries of a row
  constexpr int64_t kMost = 24, kNearlyAll = 27;  // of 32
  using S = Slots<kBytes, kColumns, scalar_t>;
  constexpr bool kDouble = sizeof(scalar_t) == 8;
  if (S::kRowBytes > kStagedBytes && a.traffic.ahead) return FewWay::kAhead;
  const int64_t count = int64_t{a.ptr[last]} - a.ptr[first], rows = last - first;
  const bool are_short = count <= kShort * rows;
  if constexpr (kBytes == 32 && S::kRowBytes <= 8) {
    return way_of_avx2<S::kEntries>(a, first, last, are_short);
  }
  if constexpr (kBytes == 64 && kColumns == 1) {
    if (gathers_fast) return way_of_gathers<S::kEntries>(a, first, last, count, are_short);
  }
  const int64_t looks = are_short ? 64 : 16;  // of which each may miss the caches
  const RowsOf32 found = rows_of_32<S::kEntries>(a.ptr, first, last, looks);
  // If the entries of a row are half a register, one column has code without a branch for each row,
  // which wins earlier against code for each length. In registers of 16 elements, staged entries
  // take less time than code for each length, unless loads wait for x, or rows have at most four
  // entries.
  const bool half = kColumns == 1 && count <= kHalfRegister<scalar_t> * rows;
  const bool in_registers =
      kColumns == 1 && !kDouble && a.traffic.staged && !a.traffic.scattered && count > 4 * rows;
  if (found.alike >= kNearlyAll && takes_many_rows<kBytes>(a, count, rows)) return FewWay::kAny;
  if (are_short && found.alike >= (half ? kNearlyAll : kMost) && !in_registers) {
    return FewWay::kByLength;
  }
  // One column whose x is not near: a loop over single rows takes the least time, probably because
  // it has the fewest instructions for an entry, and so the most loads under way.
  if (kColumns == 1 && a.traffic.fetched && (kDouble || are_short)) {
    return FewWay::kRowByRowFetched;
  }
  // A loop over four rows has instructions of its own for each of them, and each element is one
  // load. For so many instructions that load, an AMD EPYC (Zen 5) no longer loads columns and
  // values ahead from memory.
  if (kColumns == 1 && kDouble && !are_short && a.traffic.distant) {
    return a.traffic.fetched ? FewWay::kRowByRowFetched : FewWay::kRowByRow;
  }
  const bool long_staged =
      kScattersLong<kColumns, scalar_t> && a.traffic.scattered && a.traffic.staged;
  const bool regular = found.alike >= kMost && !long_staged;
  if (!are_short && (!a.traffic.fetched || gathers_fast) &&
      (regular || runs_of_32(a, first, last, looks, S::kEntries) >= kMost)) {
    if (!a.traffic.fetched) return FewWay::kRegular;
    if (!gathers_fast) return FewWay::kRegularFetched;
    // Of four floats and more in a row of x, the processor itself loads enough ahead from a cache.
    const bool along = kDouble || kColumns < 4 || a.traffic.distant;
    return along ? FewWay::kRegularFetchedAlong : FewWay::kRegular;
  }
  if constexpr (S::kRowBytes <= kStagedBytes && S::kRegisters == 1) {
    const FewWay staged = staged_way<kBytes, kColumns>(a, found, count, rows, half);
    if (staged != FewWay::kAny) return staged;
  }
  if (a.traffic.fetched && gathers_fast) return FewWay::kFetchedAlong;
  return !are_short && a.traffic.fetched ? FewWay::kFetched : FewWay::kAny;
}

// Calls way(a, first, last), compiled as a function of its own. When one function had all ways,
// some took up to 1.25 times as long, probably because GCC 12 arranges a loop by what else its
// function has.
template <int kBytes, class index_t, class scalar_t, class F>
void alone(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last, const F& way) {
  with_registers<kBytes>([&]<int>() {
    const Spmm<index_t, scalar_t> own = a;  // no store to y can change it
    way(own, first, last);
  });
}

// Rows [first, last) by registers: of several columns row by row, of one kRows at a time.
template <int kBytes, int kColumns, int kRows, bool kRegular, Fetched kFetched, class index_t,
          class scalar_t>
void by_registers(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  alone<kBytes>(a, first, last, [](const auto& own, int64_t i, int64_t end) {
    if constexpr (kColumns > 1) {
      spmm_by_registers<kBytes, kColumns, kRegular, kFetched>(own, i, end);
    } else {
      const int64_t stop = end_of_readable(own, i, end, Slots<kBytes, 1, scalar_t>::kSlots);
      for (; i + kRows <= stop; i += kRows) {
        spmv_long_rows<kBytes, true, kRegular, kFetched>(own, i, kRows);
      }
      for (; i < end; i += kRows) {
        spmv_long_rows<kBytes, false>(own, i, std::min<int64_t>(kRows, end - i));
      }
    }
  });
}

// The same; each register of entries prefetches a later one.
template <int kBytes, int kColumns, bool kRegular, class index_t, class scalar_t>
void along_registers(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  if constexpr (kBytes == 64) {
    by_registers<kBytes, kColumns, 4, kRegular, Fetched::kByRegister>(a, first, last);
  }
}

template <int kBytes, int kColumns, bool kShort, bool kEven, class index_t, class scalar_t>
void by_stages(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  if constexpr (kBytes != 32 && Slots<kBytes, kColumns, scalar_t>::kRowBytes <= kStagedBytes &&
                Slots<kBytes, kColumns, scalar_t>::kRegisters == 1) {
    alone<kBytes>(a, first, last, [](const auto& own, int64_t i, int64_t end) {
      spmm_staged<kBytes, kColumns, kShort, kEven>(own, i, end);
    });
  }
}

template <int kBytes, int kColumns, class index_t, class scalar_t>
void run_way(FewWay way, const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  constexpr bool kOne = kColumns == 1;
  constexpr int kRowByRow = kOne ? 1 : 4;  // several columns are always added row by row
  switch (way) {
    case FewWay::kAhead:
      if constexpr (kColumns * sizeof(scalar_t) > kStagedBytes) {
        alone<kBytes>(a, first, last, [](const auto& own, int64_t i, int64_t end) {
          spmm_by_registers<kBytes, kColumns, false, Fetched::kNot, true>(own, i, end);
        });
      }
      return;
    case FewWay::kByLength:
      return alone<kBytes>(a, first, last, [](const auto& own, int64_t i, int64_t end) {
        spmm_by_length<kBytes, kColumns>(own, i, end);
      });
    case FewWay::kFourRows:
      return by_registers<kBytes, kColumns, 4, false, Fetched::kNot>(a, first, last);
    case FewWay::kRowByRow:
      return by_registers<kBytes, kColumns, kRowByRow, false, Fetched::kNot>(a, first, last);
    case FewWay::kRowByRowFetched:
      return by_registers<kBytes, kColumns, kRowByRow, false, Fetched::kByRow>(a, first, last);
    case FewWay::kRegular:
      return by_registers<kBytes, kColumns, 4, true, Fetched::kNot>(a, first, last);
    case FewWay::kRegularFetched:
      return by_registers<kBytes, kColumns, 4, true, Fetched::kByRow>(a, first, last);
    case FewWay::kFetched:
      return by_registers<kBytes, kColumns, 4, false, Fetched::kByRow>(a, first, last);
    case FewWay::kFetchedAlong:
      return along_registers<kBytes, kColumns, false>(a, first, last);
    case FewWay::kRegularFetchedAlong:
      return along_registers<kBytes, kColumns, true>(a, first, last);
    case FewWay::kStagedHalfEven:
      return by_stages<kBytes, kColumns, kOne, true>(a, first, last);
    case FewWay::kStagedHalf:
      return by_stages<kBytes, kColumns, kOne, false>(a, first, last);
    case FewWay::kStagedEven:
      return by_stages<kBytes, kColumns, false, true>(a, first, last);
    case FewWay::kStaged:
      return by_stages<kBytes, kColumns, false, false>(a, first, last);
    default:
      if constexpr (kOne) {
        alone<kBytes>(a, first, last,
                      [](const auto& own, int64_t i, int64_t end) { spmv<kBytes>(own, i, end); });
      } else {
        by_registers<kBytes, kColumns, 4, false, Fetched::kNot>(a, first, last);
      }
  }
}

// Calls f.operator()<kColumns>() for n columns, if these are few in registers of kBytes.
template <int kBytes, class scalar_t, class F>
void for_columns(int64_t n, const F& f) {
  const auto call = [&]<int kColumns>() {
    constexpr int64_t kRow = kColumns * static_cast<int64_t>(sizeof(scalar_t));
    if constexpr (are_few(kColumns, kRow, kBytes)) f.template operator()<kColumns>();
  };
  switch (n) {
    case 1:
      return call.template operator()<1>();
    case 2:
      return call.template operator()<2>();
    case 4:
      return call.template operator()<4>();
    default:
      return call.template operator()<8>();
  }
}

}  // namespace

template <class scalar_t>
FewWay few_way(const Spmm<int32_t, scalar_t>& a, int64_t first, int64_t last) {
  FewWay way{};
  for_width([&]<int kBytes>() {
    for_columns<kBytes, scalar_t>(
        a.n, [&]<int kColumns>() { way = choose_way<kBytes, kColumns>(a, first, last); });
  });
  return way;
}

template <class scalar_t>
void spmm_few(const Spmm<int32_t, scalar_t>& a, int64_t first, int64_t last) {
  const FewWay way = a.way == FewWay::kUnknown ? few_way(a, first, last) : a.way;
  for_width([&]<int kBytes>() {
    for_columns<kBytes, scalar_t>(
        a.n, [&]<int kColumns>() { run_way<kBytes, kColumns>(way, a, first, last); });
  });
}

template FewWay few_way(const Spmm<int32_t, float>&, int64_t, int64_t);
template FewWay few_way(const Spmm<int32_t, double>&, int64_t, int64_t);
template void spmm_few(const Spmm<int32_t, float>&, int64_t, int64_t);
template void spmm_few(const Spmm<int32_t, double>&, int64_t, int64_t);

}  // namespace spgrad
