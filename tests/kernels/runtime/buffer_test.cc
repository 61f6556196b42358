#include "kernels/runtime/buffer.h"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>
#include <vector>

#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("buffers are aligned, do not overlap, and keep their values", "[buffer]") {
  std::vector<Buffer> buffers;
  const std::vector<int64_t> sizes = {1, 63, 64, 65, 4096, 3 << 20, 33 << 20, 100 << 20};
  for (int round = 0; round < 3; ++round) {
    for (int64_t size : sizes) {
      buffers.push_back(*Buffer::Allocate(size));
      CHECK(buffers.back().bytes() == size);
      REQUIRE(reinterpret_cast<uintptr_t>(buffers.back().data()) % 64 == 0);
      const int value = static_cast<int>(buffers.size());
      buffers.back().as<unsigned char>()[0] = static_cast<unsigned char>(value);
      buffers.back().as<unsigned char>()[size - 1] = static_cast<unsigned char>(value);
    }
    // Freeing half of the buffers must not affect the others.
    std::vector<Buffer> kept;
    for (size_t i = 0; i < buffers.size(); ++i) {
      const int first = buffers[i].as<unsigned char>()[0];
      CHECK(first == buffers[i].as<unsigned char>()[buffers[i].bytes() - 1]);
      if (i % 2 == 0) kept.push_back(std::move(buffers[i]));
    }
    buffers = std::move(kept);
  }
}

TEST_CASE("separate buffers give their memory back one by one", "[buffer]") {
  for (const int64_t bytes : {int64_t{1}, int64_t{100}, int64_t{65}, int64_t{3} << 20,
                              (int64_t{4} << 20) + 1, int64_t{40} << 20}) {
    absl::StatusOr<Buffer> buffer = Buffer::AllocateSeparately(bytes);
    REQUIRE(buffer.ok());
    CHECK(buffer->bytes() == bytes);
    CHECK(reinterpret_cast<uintptr_t>(buffer->data()) % 64 == 0);
    std::memset(buffer->data(), 7, static_cast<size_t>(bytes));
  }
  CHECK(Buffer::AllocateSeparately(0)->data() == nullptr);
  CHECK(absl::IsResourceExhausted(
      Buffer::AllocateSeparately(std::numeric_limits<int64_t>::max()).status()));
  CHECK(absl::IsResourceExhausted(Buffer::AllocateSeparately(int64_t{1} << 60).status()));
  // One buffer that stays keeps no memory of others.
  const auto resident = [] {
    std::ifstream file("/proc/self/statm");
    int64_t size = 0, pages = 0;
    file >> size >> pages;
    return pages * 4096;
  };
  const int64_t before = resident();
  constexpr int64_t kBytes = int64_t{8} << 20;
  std::vector<Buffer> kept;
  for (int i = 0; i < 20; ++i) {
    Buffer buffer = *Buffer::AllocateSeparately(kBytes);
    std::memset(buffer.data(), 7, kBytes);
    if (i % 10 == 0) kept.push_back(std::move(buffer));
  }
  CHECK(resident() - before < 4 * kBytes);
}

TEST_CASE("a moved buffer owns its memory", "[buffer]") {
  Buffer a = *Buffer::Allocate(100);
  std::memset(a.data(), 7, 100);
  Buffer b = std::move(a);
  Buffer c;
  c = std::move(b);
  CHECK(c.bytes() == 100);
  CHECK(c.as<char>()[99] == 7);
}

TEST_CASE("an empty buffer has 0 bytes, and impossible sizes are RESOURCE_EXHAUSTED", "[buffer]") {
  const Buffer empty = *Buffer::Allocate(0);
  CHECK(empty.bytes() == 0);
  for (int64_t size : {int64_t{1} << 60, std::numeric_limits<int64_t>::max()}) {
    CHECK(Buffer::Allocate(size).status().code() == absl::StatusCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace quintet
