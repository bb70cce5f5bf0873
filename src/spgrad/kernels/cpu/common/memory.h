// Memory for results, and for what kernels need while they run.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace spgrad {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Notes that the system could not allocate `bytes` bytes, for the text of the kernel's error,
// because torch drops the text of exceptions that its threads throw. 0 deletes the note.
void note_out_of_memory(size_t bytes) noexcept;

// Throws the error if a lack of memory was noted.
void rethrow_out_of_memory();

// Memory for `size` elements of `each` bytes, from malloc or, if `zeroed`, from calloc. If the
// allocation fails, notes that and throws.
void* allocate(size_t size, size_t each, bool zeroed = false);
void release(void* memory) noexcept;

// An array that only the kernel uses. T is trivial.
struct Release {
  void operator()(void* memory) const noexcept { release(memory); }
};
template <class T>
using Array = std::unique_ptr<T[], Release>;

// `size` elements, uninitialised.
template <class T>
Array<T> array(int64_t size) {
  return Array<T>(static_cast<T*>(allocate(size, sizeof(T))));
}

// `size` elements that are zero. In a large array, only the pages that are written take memory,
// because calloc gives zero pages.
template <class T>
Array<T> zeros(int64_t size) {
  return Array<T>(static_cast<T*>(allocate(size, sizeof(T), true)));
}

template <class T>
struct Allocator {
  using value_type = T;
  Allocator() = default;
  template <class U>
  Allocator(const Allocator<U>&) noexcept {}
  T* allocate(size_t size) { return static_cast<T*>(spgrad::allocate(size, sizeof(T))); }
  void deallocate(T* memory, size_t) noexcept { release(memory); }
  bool operator==(const Allocator&) const = default;
};
template <class T>
using List = std::vector<T, Allocator<T>>;

// Calls the kernel. If memory ran out on any thread, its error says so.
template <auto kernel>
struct Guarded;
template <class R, class... A, R (*kernel)(A...)>
struct Guarded<kernel> {
  static R call(A... args) {
    try {
      return kernel(std::forward<A>(args)...);
    } catch (...) {
      rethrow_out_of_memory();
      throw;
    }
  }
};

// TORCH_BOX, for every kernel that allocates.
#define SPGRAD_BOX(kernel) TORCH_BOX((&spgrad::Guarded<(kernel)>::call))

// An uninitialised tensor on like's device, of like's dtype unless another is given. A large
// tensor reuses the memory of a freed tensor of about its size, if there is one.
Tensor empty(const Tensor& like, std::initializer_list<int64_t> size,
             std::optional<ScalarType> dtype = std::nullopt);

// Memory that can become the memory of a tensor.
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

  // Whether it goes back to the memory that is kept, as that of large tensors does.
  bool is_kept() const { return kept_; }

  // Lets the system take back the pages behind the first `bytes` bytes whenever it needs memory.
  // Memory that is not kept stays as it is.
  void trim(size_t bytes) noexcept;

  // A tensor on like's device which owns the memory from now on.
  Tensor become(const Tensor& like, std::initializer_list<int64_t> size, ScalarType dtype) &&;

 private:
  void* start_ = nullptr;
  size_t bytes_ = 0;
  bool kept_ = false;  // not from malloc
};

}  // namespace spgrad
