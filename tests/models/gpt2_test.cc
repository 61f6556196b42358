#include "models/gpt2.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "models/checkpoint/json.h"
#include "models/checkpoint/safetensors.h"
#include "tests/catch.h"
#include "tests/models/checkpoint/checkpoint.h"
#include "tests/models/must_load.h"
#include "tests/models/row_runner.h"

namespace quintet {
namespace {

TEST_CASE("GPT-2: hidden states are bit-identical whole, in chunks, alone and packed") {
  ThreadPool pool(2);
  const TokenRows rows = {
      {5, 9, 200, 31, 77, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, {7}, {3, 250, 4}};
  for (const char* name : {"gpt2", "gpt2-variant"}) {
    INFO(name);
    auto model = MustLoad(GoldenDirectory(name), &pool);
    RowRunner runner(model.get());
    const std::vector<float> whole = runner.Decode(rows, kAll);
    CHECK(whole == runner.Decode(rows, 1));
    CHECK(whole == runner.Decode(rows, 4));
    std::vector<float> alone;
    for (const auto& row : rows) {
      const std::vector<float> states = runner.Decode({row}, kAll);
      alone.insert(alone.end(), states.begin(), states.end());
    }
    CHECK(whole == alone);
    // Encode gives the same hidden states as Decode, but stores no keys and values in the cache.
    for (const int64_t work : {int64_t{1}, int64_t{20}, kAll}) {
      CHECK(whole == runner.Encode(rows, work));
    }
  }
}

// The keys and values of the prompt are computed once, in the cache slots 40 and 41, and both
// continuations read them there.
TEST_CASE("GPT-2: continuations share a prompt's keys and values") {
  ThreadPool pool(2);
  auto model = MustLoad(GoldenDirectory("gpt2"), &pool);
  const int64_t d_model = model->config().d_model;
  const std::vector<float> apart =
      RowRunner(model.get()).Decode({{5, 6, 7, 8}, {5, 6, 30, 31}}, kAll);

  const std::vector<int32_t> prompt = {5, 6}, prompt_offsets = {0, 2}, two = {2},
                             prompt_slots = {40, 41};
  model->Decode({.tokens = prompt,
                 .offsets = prompt_offsets,
                 .kv_lens = two,
                 .slots = prompt_slots.data(),
                 .slots_stride = 2});
  const std::vector<int32_t> tokens = {7, 8, 30, 31}, offsets = {0, 2, 4}, kv_lens = {4, 4};
  const std::vector<int32_t> slots = {40, 41, 42, 43, 40, 41, 90, 91}, output_rows = {0, 1, 2, 3};
  const Tensor states = model->Decode({.tokens = tokens,
                                       .offsets = offsets,
                                       .kv_lens = kv_lens,
                                       .slots = slots.data(),
                                       .slots_stride = 4,
                                       .output_rows = output_rows});
  CHECK(std::equal(states.f32(), states.f32() + 2 * d_model, apart.begin() + 2 * d_model));
  CHECK(std::equal(states.f32() + 2 * d_model, states.f32() + 4 * d_model,
                   apart.begin() + 6 * d_model));
}

// No golden case has a GPT-2 with a classification head. The test makes a checkpoint with one: the
// language model's tensors plus score.weight.
TEST_CASE("GPT-2: sequence classification multiplies the last hidden state by score.weight") {
  ThreadPool pool(1);
  const std::filesystem::path directory =
      std::filesystem::temp_directory_path() / "quintet_gpt2_classifier";
  std::filesystem::remove_all(directory);
  std::filesystem::create_directory(directory);
  auto config = ReadJsonFile(GoldenDirectory("gpt2") + "/config.json", 1 << 20);
  REQUIRE(config.ok());
  const int64_t d_model = (*config)["n_embd"], labels = 3;
  (*config)["architectures"] = {"GPT2ForSequenceClassification"};
  config->erase("id2label");
  config->erase("label2id");
  (*config)["num_labels"] = labels;
  std::ofstream(directory / "config.json") << config->dump();

  auto reader = SafetensorsReader::Open(GoldenDirectory("gpt2"));
  REQUIRE(reader.ok());
  std::vector<TensorSpec> specs;
  for (const StoredTensor& t : reader->tensors()) specs.push_back({t.name, t.type, t.shape});
  specs.push_back({"score.weight", StoredType::kF32, {labels, d_model}});
  auto writer = SafetensorsWriter::Create((directory / "model.safetensors").string(), specs, {});
  REQUIRE(writer.ok());
  for (const StoredTensor& t : reader->tensors()) {
    std::vector<char> bytes(static_cast<size_t>(t.bytes));
    REQUIRE(reader->Read(t, 0, t.bytes, bytes.data()).ok());
    REQUIRE(writer->Append(bytes.data(), t.bytes).ok());
  }
  std::vector<float> score(static_cast<size_t>(labels * d_model));
  for (size_t i = 0; i < score.size(); ++i) score[i] = static_cast<float>(i % 17) / 16.0f - 0.5f;
  REQUIRE(writer->Append(score.data(), labels * d_model * 4).ok());
  REQUIRE(writer->Finish().ok());

  auto language_model = MustLoad(GoldenDirectory("gpt2"), &pool);
  auto classifier = MustLoad(directory.string(), &pool);
  CHECK(classifier->config().head == Head::kSequenceClassification);
  const TokenRows rows = {{5, 6, 7, 8}};
  const std::vector<float> states = RowRunner(classifier.get()).Decode(rows, kAll);
  CHECK(states == RowRunner(language_model.get()).Decode(rows, kAll));
  const std::vector<float> logits = RowRunner(classifier.get()).Classify(states);
  REQUIRE(logits.size() == 4 * 3);
  for (int64_t label = 0; label < labels; ++label) {
    double sum = 0;
    for (int64_t i = 0; i < d_model; ++i)
      sum += double{states[3 * d_model + i]} * score[label * d_model + i];
    CHECK(logits[3 * labels + label] == Approx(sum).margin(1e-5));
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace quintet
