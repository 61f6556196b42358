#include "kernels/runtime/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/memory_size.h"

namespace quintet {
namespace {

// A GEMM that reads its weights from main memory is at least twice as fast with huge pages as with
// 4 KiB pages. Memory therefore comes from mappings that huge pages can back completely: blocks of
// up to kLargeBlock bytes share mappings of kSlab bytes (slabs), and each larger block has its own
// mapping.
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kSlab = int64_t{128} << 20;
constexpr int64_t kLargeBlock = int64_t{32} << 20;
constexpr int64_t kAlignment = 64;

// An anonymous memory mapping. Pages that are never touched take no physical memory.
class Mapping {
 public:
  // Maps `bytes` bytes that start at a huge page boundary. Returns null if mmap fails.
  static std::shared_ptr<Mapping> Create(int64_t bytes) {
    const size_t size = static_cast<size_t>(bytes + kHugePage);
    auto mapping = std::make_shared<Mapping>();  // first: it may throw
    void* const base =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return nullptr;
    mapping->base_ = base;
    mapping->size_ = size;
    const auto at = reinterpret_cast<uintptr_t>(base);
    mapping->begin_ = static_cast<char*>(base) + (kHugePage - at % kHugePage) % kHugePage;
    mapping->capacity_ = bytes;
    madvise(mapping->begin_, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    return mapping;
  }
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (base_ != nullptr) munmap(base_, size_);
  }

  // Returns the next `bytes` bytes of the mapping, or null if fewer are left.
  void* Take(int64_t bytes) {
    const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (rounded > capacity_ - used_) return nullptr;
    void* const block = begin_ + used_;
    used_ += rounded;
    return block;
  }

 private:
  void* base_ = nullptr;
  size_t size_ = 0;
  char* begin_ = nullptr;
  int64_t capacity_ = 0;
  int64_t used_ = 0;
};

struct Slabs {
  std::mutex mutex;
  std::weak_ptr<Mapping> current;  // freed with its last block
};

// Sets *block to a new block of `bytes` bytes and returns the mapping that holds it. Returns null
// if there is no memory.
std::shared_ptr<Mapping> TakeBlock(int64_t bytes, void** block) {
#if defined(__SANITIZE_ADDRESS__)
  const bool own = true;  // so that the sanitizer sees overruns
#else
  const bool own = bytes > kLargeBlock;
#endif
  const int64_t exact = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (!own) {
    static Slabs& slabs = *new Slabs;
    std::lock_guard<std::mutex> lock(slabs.mutex);
    std::shared_ptr<Mapping> slab = slabs.current.lock();
    if (slab != nullptr && (*block = slab->Take(bytes)) != nullptr) return slab;
    slab = Mapping::Create(kSlab);
    if (slab != nullptr) {
      slabs.current = slab;
      *block = slab->Take(bytes);
      return slab;
    }
  }
  std::shared_ptr<Mapping> mapping = Mapping::Create(exact);
  if (mapping != nullptr) *block = mapping->Take(bytes);
  return mapping;
}

}  // namespace

absl::StatusOr<Buffer> Buffer::Allocate(int64_t bytes) {
  QT_CHECK_GE(bytes, 0);
  Buffer buffer;
  buffer.bytes_ = bytes;
  if (bytes == 0) return buffer;
  if (bytes < std::numeric_limits<int64_t>::max() / 2) {
    buffer.owner_ = TakeBlock(bytes, &buffer.data_);
  }
  if (buffer.owner_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", MemorySize(bytes)));
  }
  return buffer;
}

absl::StatusOr<Buffer> Buffer::AllocateSeparately(int64_t bytes) {
  constexpr int64_t kLeastMapping = 2 * kHugePage;
  QT_CHECK_GE(bytes, 0);
  Buffer buffer;
  buffer.bytes_ = bytes;
  if (bytes == 0) return buffer;
  if (bytes < std::numeric_limits<int64_t>::max() / 2) {
    const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (rounded < kLeastMapping) {
      buffer.data_ = std::aligned_alloc(kAlignment, static_cast<size_t>(rounded));
      if (buffer.data_ != nullptr) buffer.owner_ = std::shared_ptr<void>(buffer.data_, std::free);
    } else if (std::shared_ptr<Mapping> mapping = Mapping::Create(rounded)) {
      buffer.data_ = mapping->Take(rounded);
      buffer.owner_ = std::move(mapping);
    }
  }
  if (buffer.owner_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", MemorySize(bytes)));
  }
  return buffer;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(owner_, other.owner_);
  return *this;
}

}  // namespace quintet
