// Uploads of a device: when the host's side of mirrored memory may be written again.
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "tests/kernels/place.h"

namespace quintet {
namespace {

TEST_CASE("what is written over after its upload has run does not reach the device") {
  ForEachPlace([](Place& place) {
    Device& device = place.stream().device();
    constexpr int32_t kWords = 100;  // more uploads than a device tells apart
    constexpr int64_t kLongBytes = int64_t{32} << 20;
    auto words = device.AllocateMirrored(kWords * 4), before = device.AllocateMirrored(kLongBytes);
    REQUIRE(words.ok());
    REQUIRE(before.ok());
    auto* const host = words->as<int32_t>();
    // The others wait for this one.
    int64_t last = device.Upload(before->data(), kLongBytes);
    std::vector<int64_t> numbers;
    for (int32_t i = 0; i < kWords; ++i) {
      host[i] = i + 1;
      numbers.push_back(device.Upload(host + i, 4));
      CHECK(numbers.back() > last);
      last = numbers.back();
    }
    for (int32_t i = 0; i < kWords; ++i) {
      device.WaitForUpload(numbers[static_cast<size_t>(i)]);
      host[i] = -1;
    }
    std::vector<int32_t> there(kWords);
    device.CopyToHost(there.data(), device.Twin(host), kWords * 4);
    REQUIRE(device.Synchronize().ok());
    for (int32_t i = 0; i < kWords; ++i) CHECK(there[static_cast<size_t>(i)] == i + 1);
    CHECK(device.Upload(host, 0) == 0);
    device.WaitForUpload(0);
  });
}

}  // namespace
}  // namespace quintet
