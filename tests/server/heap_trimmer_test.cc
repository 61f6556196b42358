#include "server/heap_trimmer.h"

#include <memory>
#include <vector>

#include "engine/process_memory.h"
#include "tests/catch.h"

namespace quintet {
namespace {

constexpr int64_t kMebibyte = 1 << 20;

// A simulated process with a HeapTrimmer. Tick sets the resident memory of the process and calls
// the trimmer. A trim (which in a real process returns freed memory to the kernel) sets the
// resident memory to `trimmed_mib`.
struct TrimmerScene {
  void Tick(int64_t mib) {
    resident_mib = mib;
    now_us += HeapTrimmer::kIntervalUs;
    trimmer.Tick(now_us);
  }

  int64_t now_us = 0, resident_mib = 0, trimmed_mib = 100;
  int trims = 0;
  HeapTrimmer trimmer{[this] { return resident_mib * kMebibyte; },
                      [this] {
                        ++trims;
                        resident_mib = trimmed_mib;
                      }};
};

TEST_CASE("heap trimmer: trims what loading left, then what growth left", "[heap_trimmer]") {
  TrimmerScene scene;
  scene.Tick(120);
  CHECK(scene.trims == 1);
  scene.Tick(115);
  CHECK(scene.trims == 1);
  scene.Tick(116);
  CHECK(scene.trims == 2);
}

TEST_CASE("heap trimmer: returns memory that was freed after a trim", "[heap_trimmer]") {
  TrimmerScene scene;
  scene.Tick(100);
  scene.trimmed_mib = 300;  // in use
  scene.Tick(310);
  CHECK(scene.trims == 2);
  scene.trimmed_mib = 100;  // freed, which leaves the process as large as before
  scene.Tick(300);
  CHECK(scene.trims == 3);
  CHECK(scene.resident_mib == 100);
}

TEST_CASE("heap trimmer: tries less and less often while memory stays in use", "[heap_trimmer]") {
  TrimmerScene scene;
  scene.Tick(100);
  scene.trimmed_mib = 300;
  const auto ticks_to_trim = [&](int64_t mib) {
    for (int ticks = 1;; ++ticks) {
      const int before = scene.trims;
      scene.Tick(mib);
      if (scene.trims > before) return ticks;
      REQUIRE(ticks < 100);
    }
  };
  for (const int expected : {1, 1, 2, 4, 8, 16, 16}) {
    CHECK(ticks_to_trim(scene.trims == 1 ? 310 : 300) == expected);
  }
  CHECK(ticks_to_trim(316) == 1);  // it has grown again
}

TEST_CASE("heap trimmer: growth counts from the smallest size", "[heap_trimmer]") {
  TrimmerScene scene;
  scene.Tick(100);
  scene.Tick(80);
  scene.Tick(95);
  CHECK(scene.trims == 1);
  scene.Tick(96);
  CHECK(scene.trims == 2);
}

TEST_CASE("heap trimmer: looks once in every interval", "[heap_trimmer]") {
  TrimmerScene scene;
  scene.Tick(100);
  scene.resident_mib = 500;
  scene.trimmer.Tick(scene.now_us + HeapTrimmer::kIntervalUs - 1);
  CHECK(scene.trims == 1);
  scene.trimmer.Tick(scene.now_us + HeapTrimmer::kIntervalUs);
  CHECK(scene.trims == 2);
}

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // these have heaps of their own
TEST_CASE("heap trimmer: returns pages in the middle of the heap", "[heap_trimmer]") {
  std::vector<std::unique_ptr<char[]>> blocks;
  for (int i = 0; i < 2048; ++i) {  // 64 MiB in all, below the mmap threshold
    blocks.push_back(std::make_unique<char[]>(32 << 10));  // zeroed: its pages are resident
  }
  for (size_t i = 0; i + 1 < blocks.size(); ++i) blocks[i] = nullptr;  // the last one stays
  const int64_t before = ResidentBytes();
  HeapTrimmer().Tick(HeapTrimmer::kIntervalUs);
  CHECK(before - ResidentBytes() >= 48 * kMebibyte);
}
#endif

}  // namespace
}  // namespace quintet
