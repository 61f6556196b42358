#include "engine/padding.h"

#include "engine/embedding.h"
#include "engine/pooling.h"
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
  int64_t tokens = 0;
  PadMode mode = PadMode::kAttend;
  const absl::Status parsed = ParsePadding(text, &tokens, &mode);
  if (!parsed.ok()) return parsed;
  return InputPadding::Create(tokens, mode, 100, Pooling::kNone, Encoder());
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
  CHECK(Create("5:zero")->result_rows() == 5);
  CHECK(Create("5")->result_rows() == 0);
  CHECK(InputPadding().result_rows() == 0);
}

TEST_CASE("Requests and results are padded by the embedding options", "[padding]") {
  const auto fill = [](PadMode mode, Ids ids) {
    EmbeddingOptions options;
    options.pooling = Pooling::kNone;
    options.pad_to = 4;
    options.pad_mode = mode;
    const auto embedding = Embedding::Create(options, Encoder(), nullptr, nullptr, 100);
    REQUIRE(embedding.ok());
    CHECK(embedding->truncates());
    Request request;
    request.input = std::move(ids);
    embedding->Fill(false, &request);
    return request;
  };
  const Request attended = fill(PadMode::kAttend, {3, 1});
  CHECK((attended.input == Ids{3, 1, 7, 7} && attended.result_rows == 0));
  const Request zeros = fill(PadMode::kZero, {3, 1});
  CHECK((zeros.input == Ids{3, 1} && zeros.result_rows == 4));

  const std::vector<float> states = {1.0f, 2.0f, 3.0f, 4.0f};
  Result result;
  PoolStates(zeros, {states, 2}, &result);
  CHECK((result.rows == 4 && result.columns == 2));
  CHECK(result.values == std::vector<float>{1.0f, 2.0f, 3.0f, 4.0f, 0.0f, 0.0f, 0.0f, 0.0f});

  EmbeddingOptions alone;
  alone.pad_mode = PadMode::kZero;
  const auto refused = Embedding::Create(alone, Encoder(), nullptr, nullptr, 100);
  CHECK(refused.status().message() == "pad_mode: needs pad_to");
}

TEST_CASE("Wrong padding is refused with the field's name", "[padding]") {
  for (const char* text : {"", "0", "-1", "101", "x", "5:", "5:mean", "5:zero:zero", ":zero"}) {
    CAPTURE(text);
    const absl::Status status = Create(text).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK(std::string(status.message()).rfind("pad_to: ", 0) == 0);
  }
  ModelConfig config = Encoder();
  CHECK_FALSE(InputPadding::Create(5, PadMode::kAttend, 100, Pooling::kMean, config).ok());
  config.pad_id = -1;
  CHECK_FALSE(InputPadding::Create(5, PadMode::kAttend, 100, Pooling::kNone, config).ok());
  config = Encoder();
  config.encoder_layers = 0;
  CHECK_FALSE(InputPadding::Create(5, PadMode::kAttend, 100, Pooling::kNone, config).ok());
}

}  // namespace
}  // namespace quintet
