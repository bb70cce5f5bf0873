// Memory for what the kernels make.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>

namespace spgrad {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// An uninitialised tensor on like's device, of like's dtype unless another is given. The memory of
// a large one is that of one freed before, where there is one of about its size.
Tensor empty(const Tensor& like, std::initializer_list<int64_t> size,
             std::optional<ScalarType> dtype = std::nullopt);

// Memory that a tensor can take over.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes) noexcept;  // as `empty` has it; start() is null if there is none
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(start_, other.start_);
    std::swap(bytes_, other.bytes_);
    std::swap(kept_, other.kept_);
    return *this;
  }
  ~Memory();

  void* start() const { return start_; }

  // A tensor on like's device which owns the memory from now on.
  Tensor become(const Tensor& like, std::initializer_list<int64_t> size, ScalarType dtype) &&;

 private:
  void* start_ = nullptr;
  size_t bytes_ = 0;
  bool kept_ = false;  // to be given back to what is kept, not to malloc
};

}  // namespace spgrad
