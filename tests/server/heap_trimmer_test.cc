#include "server/heap_trimmer.h"

#include <memory>
#include <vector>

#include "engine/process_memory.h"
#include "tests/catch.h"

namespace quintet {
namespace {

constexpr int64_t kMib = 1 << 20;

// A process whose size a test sets; a trim leaves `trimmed_mib`.
struct Scene {
  void Tick(int64_t mib) {
    resident_mib = mib;
    now_us += HeapTrimmer::kIntervalUs;
    trimmer.Tick(now_us);
  }

  int64_t now_us = 0, resident_mib = 0, trimmed_mib = 100;
  int trims = 0;
  HeapTrimmer trimmer{[this] { return resident_mib * kMib; },
                      [this] {
                        ++trims;
                        resident_mib = trimmed_mib;
                      }};
};

TEST_CASE("heap trimmer: trims when the process has grown since the last trim", "[heap_trimmer]") {
  Scene scene;
  scene.Tick(120);
  CHECK(scene.trims == 1);  // what loading left
  scene.Tick(115);
  CHECK(scene.trims == 1);
  scene.Tick(116);
  CHECK(scene.trims == 2);
  // Memory that a trim could not return does not cause the next trim.
  scene.trimmed_mib = 300;
  scene.Tick(300);
  scene.Tick(310);
  CHECK(scene.trims == 3);
}

TEST_CASE("heap trimmer: growth counts from the smallest size since", "[heap_trimmer]") {
  Scene scene;
  scene.Tick(100);
  scene.Tick(80);
  scene.Tick(95);
  CHECK(scene.trims == 1);
  scene.Tick(96);
  CHECK(scene.trims == 2);
}

TEST_CASE("heap trimmer: looks once in every interval", "[heap_trimmer]") {
  Scene scene;
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
  CHECK(before - ResidentBytes() >= 48 * kMib);
}
#endif

}  // namespace
}  // namespace quintet
