#include "kernels/runtime/buffer.h"

#include <cstdint>
#include <cstring>
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
