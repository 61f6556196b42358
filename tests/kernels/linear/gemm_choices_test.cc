#include "kernels/linear/gemm_choices.h"

#include <string>

#include "tests/catch.h"

namespace quintet {
namespace {

constexpr char kDevice[] = "a card, 132 multiprocessors, CUDA driver 13000, cuBLASLt 130100";
constexpr GemmAlgorithmChoices::Key kKey = {48, 768, 3072, 3072, 768, 768, 256, 256, 256, -7};
constexpr GemmAlgorithmChoices::Key kOther = {96, 768, 3072, 3072, 768, 768, 256, 256, 256, 5};

GemmAlgorithmChoices Two() {
  GemmAlgorithmChoices choices;
  choices.Add(kKey, 3);
  choices.Add(kOther, 0);
  return choices;
}

TEST_CASE("GEMM plans round-trip through their text form") {
  const std::string text = Two().Text(kDevice);
  GemmAlgorithmChoices read;
  CHECK(read.Find(kKey) == -1);
  REQUIRE(read.Merge(text, kDevice).ok());
  CHECK(read.size() == 2);
  CHECK(read.Find(kKey) == 3);
  CHECK(read.Find(kOther) == 0);
  CHECK_FALSE(read.changed());  // nothing new to save
  CHECK(read.Text(kDevice) == text);
}

TEST_CASE("known GEMM plans are not replaced") {
  GemmAlgorithmChoices choices;
  choices.Add(kKey, 5);
  REQUIRE(choices.Merge(Two().Text(kDevice), kDevice).ok());
  CHECK(choices.Find(kKey) == 5);
  CHECK(choices.Find(kOther) == 0);
  CHECK(choices.changed());
}

TEST_CASE("GEMM plans of another device are ignored") {
  GemmAlgorithmChoices read;
  CHECK(read.Merge(Two().Text("another card"), kDevice).ok());
  CHECK(read.size() == 0);
}

TEST_CASE("a damaged file of GEMM plans is rejected completely") {
  const std::string text = Two().Text(kDevice);
  const auto refused = [](const std::string& damaged) {
    GemmAlgorithmChoices read;
    const absl::Status status = read.Merge(damaged, kDevice);
    return absl::IsDataLoss(status) && read.size() == 0;
  };
  for (size_t length = 0; length < text.size(); ++length) {
    CHECK(refused(text.substr(0, length)));
  }
  for (size_t at = 0; at < text.size(); ++at) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    CHECK(refused(damaged));
  }
  CHECK(refused(text + "\n"));
  CHECK(refused(text + text));
  CHECK(refused(std::string(GemmAlgorithmChoices::kMostTextBytes + 1, '\n')));
}

// A text of GEMM choices with a valid checksum can still contain algorithm numbers that do not
// exist. Merge must reject it.
TEST_CASE("GEMM plans out of range are rejected") {
  const auto with = [](const GemmAlgorithmChoices::Key& key, int choice) {
    GemmAlgorithmChoices choices;
    choices.Add(key, choice);
    return choices.Text(kDevice);
  };
  GemmAlgorithmChoices read;
  CHECK(absl::IsDataLoss(read.Merge(with(kKey, GemmAlgorithmChoices::kChoices), kDevice)));
  CHECK(absl::IsDataLoss(read.Merge(with(kKey, -1), kDevice)));
  CHECK(read.Merge(with(kKey, GemmAlgorithmChoices::kChoices - 1), kDevice).ok());
}

TEST_CASE("the number of GEMM plans is bounded") {
  GemmAlgorithmChoices choices;
  for (int64_t i = 0; i < static_cast<int64_t>(GemmAlgorithmChoices::kMostShapes) + 5; ++i) {
    GemmAlgorithmChoices::Key key = kKey;
    key[0] = i;
    choices.Add(key, 1);
  }
  CHECK(choices.size() == GemmAlgorithmChoices::kMostShapes);
  const std::string text = choices.Text(kDevice);
  CHECK(static_cast<int64_t>(text.size()) < GemmAlgorithmChoices::kMostTextBytes);
  GemmAlgorithmChoices read;
  CHECK(read.Merge(text, kDevice).ok());
  CHECK(read.size() == choices.size());
}

}  // namespace
}  // namespace quintet
