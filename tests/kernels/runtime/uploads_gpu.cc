// H2D copies (Device::CopyH2D): their order relative to other work, and when the pinned host memory
// may be overwritten.
#include <algorithm>
#include <vector>

#include "kernels/runtime/device.h"
#include "tests/catch.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

// The work that keeps the CUDA stream busy when uploads are enqueued.
enum class Before { kUpload, kOther };

struct Uploads {
  Before before;
  int64_t before_bytes;
  int64_t words;  // per upload
  int32_t count;
};

// Enqueues uploads with different contents, and overwrites the pinned source of each as soon as
// WaitForH2D has returned for it. Returns the number of wrong words in device memory.
int64_t CountWrongWords(Device& device, const Uploads& uploads) {
  auto before = device.AllocatePinned(uploads.before_bytes);
  auto block = device.AllocatePinned(uploads.count * uploads.words * 4);
  REQUIRE(before.ok());
  REQUIRE(block.ok());
  REQUIRE(device.Synchronize().ok());
  auto* const host = block->as<int32_t>();
  int64_t last = 0;
  if (uploads.before == Before::kUpload) {
    last = device.CopyH2D(before->data(), uploads.before_bytes);
  } else {
    device.CopyToHost(before->data(), device.DevicePtr(before->data()), uploads.before_bytes);
  }
  std::vector<int64_t> numbers;
  for (int32_t i = 0; i < uploads.count; ++i) {
    int32_t* const words = host + i * uploads.words;
    std::fill_n(words, uploads.words, i + 1);
    numbers.push_back(device.CopyH2D(words, uploads.words * 4));
    CHECK(numbers.back() > last);
    last = numbers.back();
  }
  for (int32_t i = 0; i < uploads.count; ++i) {
    device.WaitForH2D(numbers[static_cast<size_t>(i)]);
    std::fill_n(host + i * uploads.words, uploads.words, -1);
  }
  std::vector<int32_t> device_words(static_cast<size_t>(uploads.count * uploads.words));
  device.CopyToHost(device_words.data(), device.DevicePtr(host), uploads.count * uploads.words * 4);
  REQUIRE(device.Synchronize().ok());
  int64_t wrong = 0;
  for (int64_t i = 0; i < uploads.count * uploads.words; ++i) {
    wrong += device_words[static_cast<size_t>(i)] != i / uploads.words + 1;
  }
  return wrong;
}

TEST_CASE("overwriting pinned memory after WaitForH2D does not change the uploaded data") {
  ForEachBackend([](TestBackend& backend) {
    Device& device = backend.stream().device();
    constexpr int64_t kLong = int64_t{32} << 20, kShort = int64_t{2} << 20;
    const Uploads cases[] = {
        {Before::kUpload, kLong, 1, 100},  // more uploads than the device tracks individually
        {Before::kUpload, kLong, 4, 100},
        {Before::kOther, kLong, 1, 100},
        {Before::kOther, kLong, 4, 100},
        {Before::kOther, kLong, 5, 100},
        // In the next three cases the uploads take longer than the copy that keeps the stream busy
        // before them.
        {Before::kOther, kShort, 1 << 16, 20},
        {Before::kOther, kShort, 1 << 18, 20},
        {Before::kOther, kShort, (1 << 18) + 4, 20},
    };
    for (const Uploads& uploads : cases) {
      INFO(uploads.count << " uploads of " << uploads.words << " words");
      CHECK(CountWrongWords(device, uploads) == 0);
    }
    auto block = device.AllocatePinned(16);
    REQUIRE(block.ok());
    CHECK(device.CopyH2D(block->data(), 0) == 0);
    device.WaitForH2D(0);
  });
}

TEST_CASE("work enqueued before an upload reads the old data, work after it the new data") {
  ForEachBackend([](TestBackend& backend) {
    Device& device = backend.stream().device();
    constexpr int32_t kRounds = 40, kWords = 1 << 12;
    constexpr int64_t kBytes = int64_t{kWords} * 4, kBeforeBytes = int64_t{2} << 20;
    auto block = device.AllocatePinned(kBytes), before = device.AllocatePinned(kBeforeBytes);
    auto seen = device.AllocatePinned(kRounds * kBytes);
    REQUIRE(block.ok());
    REQUIRE(before.ok());
    REQUIRE(seen.ok());
    auto* const host = block->as<int32_t>();
    int64_t last = 0;
    for (int32_t round = 0; round < kRounds; ++round) {
      device.WaitForH2D(last);
      std::fill_n(host, kWords, round + 1);
      last = device.CopyH2D(host, kBytes);
      // This large copy occurs in every second round. It keeps the stream busy while the next round
      // enqueues its upload.
      if (round % 2 == 0) {
        device.CopyToHost(before->data(), device.DevicePtr(before->data()), kBeforeBytes);
      }
      device.CopyToHost(seen->as<int32_t>() + round * kWords, device.DevicePtr(host), kBytes);
    }
    REQUIRE(device.Synchronize().ok());
    int64_t wrong = 0;
    for (int64_t i = 0; i < int64_t{kRounds} * kWords; ++i) {
      wrong += seen->as<int32_t>()[i] != i / kWords + 1;
    }
    CHECK(wrong == 0);
  });
}

}  // namespace
}  // namespace quintet
