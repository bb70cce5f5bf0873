// The payload that a kernel moves together with the indices of entries: their numbers, or their
// values.
#pragma once
#include <optional>

#include "common/arguments.h"
#include "common/dispatch.h"

namespace spgrad {

// Writes at place q the number p of the entry that went there.
template <class index_t>
struct EntryNumber {
  index_t* out;
  static constexpr index_t kNone = -1;

  SPGRAD_INLINE void place(int64_t q, int64_t p) const { out[q] = static_cast<index_t>(p); }
};

// Writes at place q the value of entry p.
template <class T>
struct EntryValue {
  const T* in;
  T* out;
  static constexpr T kNone{};

  SPGRAD_INLINE void place(int64_t q, int64_t p) const { out[q] = in[p]; }
};

// val is null, or the values (nse,) of all entries.
inline void check_payload(const std::optional<Tensor>& val, int64_t nse) {
  if (!val) return;
  check_tensor(*val, 1, val->scalar_type(), "val");
  check_size(*val, 0, nse, "val");
}

// An uninitialised tensor of `count` values, or of numbers in the dtype of `like`.
inline Tensor empty_payload(const std::optional<Tensor>& val, const Tensor& like, int64_t count) {
  return empty(val ? *val : like, {count});
}

// Calls f(payload) with a payload that writes to `out`, which `empty_payload` gave.
template <class index_t, class F>
void dispatch_payload(const std::optional<Tensor>& val, const Tensor& out, F&& f) {
  if (!val) return f(EntryNumber<index_t>{mutable_data<index_t>(out)});
  dispatch_size(val->element_size(),
                [&]<class T>() { f(EntryValue<T>{data<T>(*val), mutable_data<T>(out)}); });
}

}  // namespace spgrad
