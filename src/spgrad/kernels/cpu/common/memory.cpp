// Memory for large results, which is kept when they are freed.
//
// torch's allocator has no cache on the CPU: a large result is new memory from the system in every
// call, and its page faults cost as much as a product. So the memory of large results comes from
// the system directly, in huge pages where there are some, and when a result is freed, it is kept
// for the next one of about that size. The system may take kept pages back whenever it needs them.
#include "common/memory.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iomanip>
#include <mutex>
#include <sstream>
#include <stdexcept>

#ifdef __GLIBC__
#include <malloc.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace spgrad {
namespace {

// Bytes that the system did not have, until a kernel raises its error; 0 for none.
std::atomic<size_t> missing = 0;

#ifdef SPGRAD_FAIL_ALLOCATIONS
std::atomic<int64_t> until_failure = 0, live = 0;

// Counts an allocation, and tells whether it is to fail.
bool fails() {
  int64_t left = until_failure;
  while (left > 0 && !until_failure.compare_exchange_weak(left, left - 1)) {
  }
  return left == 1;
}

void count_live(int64_t more) { live += more; }

// Makes the n-th allocation from now on fail, none if n is 0. Returns how many allocations were
// still to come before the failure of the last call, and how many allocations are not freed.
Tensor fail_allocation(const Tensor& like, int64_t n) {
  const int64_t left = until_failure.exchange(0);
  Tensor out = torch::stable::new_empty(like, {2}, ScalarType::Long);
  auto* const answer = static_cast<int64_t*>(out.mutable_data_ptr());
  answer[0] = left;
  answer[1] = live;
  until_failure = n;
  return out;
}
#else
constexpr bool fails() { return false; }
constexpr void count_live(int64_t) {}
#endif

#ifdef __linux__
// The smallest result whose memory is kept here. That of smaller ones malloc keeps, up to 32 MB.
constexpr size_t kLeastKept = 4 << 20;

constexpr size_t kPage = 4096, kHuge = 2 << 20;

// Asks for huge pages: 2 MB at a time, page faults cost less than half. NumPy does so from 4 MB on.
void prefer_huge_pages(void* start, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(start);
  const uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  madvise(reinterpret_cast<void*>(first), begin + bytes - first, MADV_HUGEPAGE);  // may be refused
}

// Blocks of memory that freed results have left.
class Kept {
 public:
  static Kept& instance() {
    static Kept* const made = new Kept;  // never destroyed: tensors may outlive static objects
    return *made;
  }

  bool keeps(size_t bytes) const { return bytes <= limit_; }

  // A block of at least `bytes` bytes, which is set to its size. Null if blocks of that size are
  // not kept, or if the system has no memory.
  void* take(size_t& bytes) {
    if (!keeps(bytes)) return nullptr;
    // In whole small pages: the unused rest of a huge page would count as used memory.
    const size_t wanted = (bytes + kPage - 1) / kPage * kPage;
    List<Block> dropped;
    // Another thread, or one that a fork lost, may hold the lock: then the block is new memory.
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) {
      ++taken_;
      size_t best = idle_.size();
      for (size_t i = idle_.size(); i-- > 0;) {  // of equal blocks, the last freed may be cached
        const size_t has = idle_[i].bytes;
        if (has < wanted || has > wanted + wanted / 4) continue;
        if (best == idle_.size() || has < idle_[best].bytes) best = i;
      }
      if (best < idle_.size()) {
        const Block block = idle_[best];
        idle_.erase(idle_.begin() + best);
        held_ -= block.bytes;
        bytes = block.bytes;
        return block.start;
      }
      drop_unused(dropped);
    }
    unmap(dropped);
    bytes = wanted;
    void* const start = map(bytes);
    if (start != nullptr || empty() == 0) return start;
    return map(bytes);
  }

  // Keeps a block, and drops the oldest ones beyond the limit.
  void give(void* start, size_t bytes) noexcept {
    List<Block> dropped;
    bool listed = false;
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) {
      try {
        idle_.push_back({start, bytes, taken_});
        listed = true;
#ifdef MADV_FREE
        madvise(start, bytes, MADV_FREE);
#endif
        held_ += bytes;
        drop_to(limit_, dropped);
      } catch (const std::exception&) {  // no memory for a list: the block goes, or the others stay
        note_out_of_memory(0);
      }
    }
    unmap(dropped);
    if (!listed) munmap(start, bytes);
  }

  // Gives everything that is kept back to the system; returns how many bytes that were.
  size_t empty() {
    List<Block> dropped;
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) drop_to(0, dropped);
    return unmap(dropped);
  }

 private:
  struct Block {
    void* start;
    size_t bytes;
    uint64_t since;  // taken_ when it was freed
  };

  // A block that so many later results did not take is dropped when a new block is made.
  static constexpr uint64_t kUnused = 32;

  Kept() {
    const char* const megabytes = std::getenv("SPGRAD_CACHE_MB");
    if (megabytes != nullptr) limit_ = std::strtoull(megabytes, nullptr, 10) << 20;
  }

  // New memory of `bytes` bytes, which begins at a multiple of kHuge.
  static void* map(size_t bytes) {
    const size_t asked = bytes + kHuge;
    void* const found =
        mmap(nullptr, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) return nullptr;
    const auto begin = reinterpret_cast<uintptr_t>(found);
    const uintptr_t first = (begin + kHuge - 1) / kHuge * kHuge, last = first + bytes;
    if (first > begin) munmap(found, first - begin);
    if (begin + asked > last) munmap(reinterpret_cast<void*>(last), begin + asked - last);
    void* const start = reinterpret_cast<void*>(first);
    prefer_huge_pages(start, bytes);
    return start;
  }

  void drop(size_t count, List<Block>& dropped) {
    dropped.insert(dropped.end(), idle_.begin(), idle_.begin() + count);
    for (size_t i = 0; i < count; ++i) held_ -= idle_[i].bytes;
    idle_.erase(idle_.begin(), idle_.begin() + count);
  }

  void drop_to(size_t limit, List<Block>& dropped) {
    size_t count = 0;
    for (size_t held = held_; held > limit; ++count) held -= idle_[count].bytes;
    drop(count, dropped);
  }

  // Drops blocks that were freed long ago: where sizes change, they fit no result any more.
  void drop_unused(List<Block>& dropped) {
    size_t count = 0;
    while (count < idle_.size() && taken_ - idle_[count].since > kUnused) ++count;
    drop(count, dropped);
  }

  static size_t unmap(const List<Block>& blocks) {
    size_t bytes = 0;
    for (const Block& block : blocks) {
      munmap(block.start, block.bytes);
      bytes += block.bytes;
    }
    return bytes;
  }

  std::mutex mutex_;
  List<Block> idle_;  // oldest first
  size_t held_ = 0;
  uint64_t taken_ = 0;
  size_t limit_ = size_t{512} << 20;
};
#endif

#ifdef __GLIBC__
// Makes malloc keep the memory of freed results of less than kLeastKept. It gives memory back to
// the system beyond twice the size of the largest block that the program has freed so far, which
// is 128 KB at first; then the pages of every result are new. So this frees a block as large as
// malloc counts. No page of it is ever used.
struct KeptByMalloc {
  KeptByMalloc() {
    if (!Kept::instance().keeps(1)) return;
    void* volatile block = std::malloc((size_t{32} << 20) - 2 * kPage);
    std::free(block);
  }
} const kept_by_malloc;
#endif

int64_t empty_cache(const Tensor&) {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
#ifdef __linux__
  return static_cast<int64_t>(Kept::instance().empty());
#else
  return 0;
#endif
}

// The product of two numbers of bytes. Where it would overflow, also because of a negative size,
// more bytes than any machine has.
size_t times(size_t left, size_t right) {
  constexpr size_t kTooMany = size_t{1} << 60;
  return right != 0 && left > kTooMany / right ? kTooMany : left * right;
}

// The bytes of a tensor of this size.
size_t bytes_of(std::initializer_list<int64_t> size, ScalarType dtype) {
  size_t bytes = aoti_torch_dtype_element_size(
      torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype)));
  for (const int64_t length : size) bytes = times(static_cast<size_t>(length), bytes);
  return bytes;
}

// The strides of a contiguous tensor.
class Strides {
 public:
  explicit Strides(std::initializer_list<int64_t> size) : dims_(size.size()) {
    STD_TORCH_CHECK(dims_ <= kMost, "spgrad: a kernel makes a result of ", dims_, " dimensions.");
    size_t step = 1;
    for (size_t dim = dims_; dim-- > 0;) {
      steps_[dim] = static_cast<int64_t>(step);
      step = times(step, static_cast<size_t>(std::max<int64_t>(size.begin()[dim], 1)));
    }
  }

  const int64_t* data() const { return steps_.data(); }
  size_t size() const { return dims_; }

 private:
  static constexpr size_t kMost = 4;
  std::array<int64_t, kMost> steps_{};
  size_t dims_;
};

// An uninitialised tensor from torch. This function of torch calls its allocator at once; with
// torch::stable::new_empty the dispatcher finds two operators, which takes a third of the time of a
// small kernel.
Tensor new_tensor(const Tensor& like, std::initializer_list<int64_t> size, ScalarType dtype) {
  const auto code = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  const Strides strides(size);
  int32_t device = 0, index = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &index));
  AtenTensorHandle made = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      static_cast<int64_t>(size.size()), size.begin(), strides.data(), code, device, index, &made));
  return Tensor(made);
}

}  // namespace

void note_out_of_memory(size_t bytes) noexcept { missing = bytes; }

void rethrow_out_of_memory() {
  const size_t bytes = missing.exchange(0);
  if (bytes == 0) return;
  std::ostringstream text;
  text << "spgrad: out of memory: the system has no " << bytes << " bytes (" << std::fixed
       << std::setprecision(1) << static_cast<double>(bytes) / 1e9
       << " GB), which are wanted at once. Free other tensors, or work on a part at a time.";
  throw std::runtime_error(text.str());
}

void* allocate(size_t size, size_t each, bool zeroed) {
  const size_t bytes = std::max<size_t>(times(size, each), 1);
  void* const memory = fails() ? nullptr : zeroed ? std::calloc(bytes, 1) : std::malloc(bytes);
  if (memory == nullptr) {
    note_out_of_memory(bytes);
    throw std::bad_alloc();
  }
  count_live(1);
  return memory;
}

void release(void* memory) noexcept {
  if (memory != nullptr) count_live(-1);
  std::free(memory);
}

Memory::Memory(size_t bytes) noexcept : bytes_(bytes) {
  if (fails()) return;
#ifdef __linux__
  try {
    if (bytes >= kLeastKept) start_ = Kept::instance().take(bytes_);
  } catch (const std::exception&) {  // no memory for a list of blocks
    note_out_of_memory(0);
  }
  kept_ = start_ != nullptr;
#endif
  if (start_ == nullptr) start_ = std::malloc(std::max<size_t>(bytes, 1));
  if (start_ != nullptr) count_live(1);
}

Memory::~Memory() {
  if (start_ != nullptr) count_live(-1);
#ifdef __linux__
  if (kept_) {
    Kept::instance().give(start_, bytes_);
    return;
  }
#endif
  std::free(start_);
}

void Memory::trim(size_t bytes) noexcept {
#ifdef MADV_FREE
  const size_t used = (bytes + kHuge - 1) / kHuge * kHuge;  // a huge page is not split
  if (kept_ && used < bytes_) madvise(static_cast<char*>(start_) + used, bytes_ - used, MADV_FREE);
#endif
}

Tensor Memory::become(const Tensor& like, std::initializer_list<int64_t> size,
                      ScalarType dtype) && {
  const Strides strides(size);
  auto* const owner = new (allocate(1, sizeof(Memory))) Memory(std::move(*this));
  return torch::stable::from_blob(owner->start(), {size.begin(), size.size()},
                                  {strides.data(), strides.size()}, like.device(), dtype,
                                  [owner](void*) {
                                    owner->~Memory();
                                    release(owner);
                                  });
}

Tensor empty(const Tensor& like, std::initializer_list<int64_t> size,
             std::optional<ScalarType> dtype) {
  const ScalarType made = dtype.value_or(like.scalar_type());
  const size_t bytes = bytes_of(size, made);
#ifdef __linux__
  if (bytes >= kLeastKept && Kept::instance().keeps(bytes)) {
    Memory memory(bytes);
    if (memory.start() != nullptr) return std::move(memory).become(like, size, made);
  }
#endif
  try {
    if (fails()) throw std::bad_alloc();
    Tensor fresh = new_tensor(like, size, made);
#ifdef __linux__
    if (bytes >= kLeastKept) prefer_huge_pages(fresh.mutable_data_ptr(), bytes);
#endif
    return fresh;
  } catch (const std::exception&) {
    note_out_of_memory(std::max<size_t>(bytes, 1));  // 0 would mean that there is none
    throw;
  }
}

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("empty_cache", SPGRAD_BOX(&empty_cache));
#ifdef SPGRAD_FAIL_ALLOCATIONS
  m.impl("fail_allocation", TORCH_BOX(&fail_allocation));
#endif
}

#ifdef SPGRAD_FAIL_ALLOCATIONS
STABLE_TORCH_LIBRARY_FRAGMENT(spgrad, m) { m.def("fail_allocation(Tensor like, int n) -> Tensor"); }
#endif

}  // namespace spgrad
