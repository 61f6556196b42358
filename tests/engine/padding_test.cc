#include "engine/padding.h"

#include "tests/catch.h"

namespace quintet {
namespace {

using Ids = std::vector<int32_t>;

ModelConfig Encoder() {
  ModelConfig config;
  config.encoder_layers = 2;
  config.pad_id = 7;
  config.eos_ids = {1};
  return config;
}

absl::StatusOr<InputPadding> Create(const std::string& text) {
  return InputPadding::Create(text, "--pad-to", 100, Pooling::kNone, Encoder());
}

Ids Padded(const std::string& text, Ids ids) {
  Create(text)->Apply(&ids);
  return ids;
}

TEST_CASE("Attended padding is part of the input", "[padding]") {
  CHECK(Padded("5", {3, 4, 1}) == Ids{3, 4, 1, 7, 7});
  CHECK(Padded("5:attend", {3, 4, 1}) == Ids{3, 4, 1, 7, 7});
  CHECK(Padded("3", {3, 4, 1}) == Ids{3, 4, 1});
}

TEST_CASE("Longer inputs are truncated and keep their end-of-sequence id", "[padding]") {
  for (const char* text : {"3", "3:zero"}) {
    CHECK(Padded(text, {3, 4, 5, 6, 1}) == Ids{3, 4, 1});
    CHECK(Padded(text, {3, 4, 5, 6}) == Ids{3, 4, 5});
  }
}

TEST_CASE("Zero padding adds rows after encoding", "[padding]") {
  CHECK(Padded("5:zero", {3, 4, 1}) == Ids{3, 4, 1});
  CHECK(Create("5:zero")->ZeroRows(3) == 2);
  CHECK(Create("5:zero")->ZeroRows(5) == 0);
  CHECK(Create("5")->ZeroRows(3) == 0);
  CHECK(InputPadding().ZeroRows(3) == 0);
}

TEST_CASE("Wrong padding is refused with the field's name", "[padding]") {
  for (const char* text : {"", "0", "-1", "101", "x", "5:", "5:mean", "5:zero:zero", ":zero"}) {
    CAPTURE(text);
    const absl::Status status = Create(text).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK(std::string(status.message()).rfind("--pad-to: ", 0) == 0);
  }
  ModelConfig config = Encoder();
  CHECK_FALSE(InputPadding::Create("5", "pad_to", 100, Pooling::kMean, config).ok());
  config.pad_id = -1;
  CHECK_FALSE(InputPadding::Create("5", "pad_to", 100, Pooling::kNone, config).ok());
  config = Encoder();
  config.encoder_layers = 0;
  CHECK_FALSE(InputPadding::Create("5", "pad_to", 100, Pooling::kNone, config).ok());
}

}  // namespace
}  // namespace quintet
