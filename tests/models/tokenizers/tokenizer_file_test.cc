#include "models/tokenizers/tokenizer_file.h"

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/checkpoint/json.h"
#include "models/tokenizers/sentencepiece_file.h"
#include "tests/catch.h"
#include "tests/models/checkpoint/checkpoint.h"
#include "tests/models/checkpoint/gguf_builder.h"

namespace quintet {
namespace {

using Catch::Matchers::ContainsSubstring;

std::string Data(const std::string& name) { return QUINTET_SOURCE_DIR "/tests/data/" + name; }

// Compares a tokenizer's ids for the texts recorded in a folder; returns the number of texts.
int CheckCases(const Tokenizer& tokenizer, const std::string& kind) {
  int cases = 0;
  std::ifstream lines(Data("tokenizers/" + kind + "/cases.jsonl"));
  for (std::string line; std::getline(lines, line); ++cases) {
    const auto expected = ParseJson(line, "case");
    REQUIRE(expected.ok());
    const std::string text = (*expected)["t"];
    CAPTURE(text);
    CHECK(*tokenizer.Encode(text, true) == (*expected)["i"].get<std::vector<int32_t>>());
  }
  return cases;
}

TEST_CASE("The tokenizer of a GGUF file gives the ids of its spiece.model", "[tokenizer]") {
  const auto tokenizer = LoadTokenizer(Data("formats/t5-encoder.gguf"), "t5");
  INFO(tokenizer.status());
  REQUIRE(tokenizer.ok());
  CHECK(CheckCases(**tokenizer, "sp-unigram-nmt_nfkc") > 100);
  CHECK((*tokenizer)->eos_id() == 1);
  CHECK((*tokenizer)->PieceToId("<extra_id_0>") ==
        (*Tokenizer::Load(Data("tokenizers/sp-unigram-nmt_nfkc")))->PieceToId("<extra_id_0>"));
}

TEST_CASE("A SentencePiece model in a tensor or in a file is read by its model's rules",
          "[tokenizer]") {
  const std::string spiece = FileBytes(Data("tokenizers/umt5-spiece/spiece.model"));
  TemporaryDirectory directory;
  TestTensors tensors = ReadTensors(GoldenDirectory("umt5"));
  std::erase_if(tensors, [](const auto& t) { return t.first.rfind("decoder.", 0) == 0; });
  std::vector<TensorSpec> specs;
  for (const auto& [name, t] : tensors) specs.push_back({name, t.type, t.shape});
  specs.push_back({"spiece_model", StoredType::kU8, {static_cast<int64_t>(spiece.size())}});
  auto writer = SafetensorsWriter::Create(directory / "umt5.safetensors", specs, {});
  REQUIRE(writer.ok());
  for (const auto& [name, t] : tensors) {
    const std::string zeros(t.values.size() * static_cast<size_t>(StoredTypeBytes(t.type)), '\0');
    REQUIRE(writer->Append(zeros.data(), static_cast<int64_t>(zeros.size())).ok());
  }
  REQUIRE(writer->Append(spiece.data(), static_cast<int64_t>(spiece.size())).ok());
  REQUIRE(writer->Finish().ok());
  for (const std::string& path :
       {directory / "umt5.safetensors", Data("tokenizers/umt5-spiece/spiece.model"),
        Data("tokenizers/umt5-spiece")}) {
    CAPTURE(path);
    const auto tokenizer = LoadTokenizer(path, "umt5");
    INFO(tokenizer.status());
    REQUIRE(tokenizer.ok());
    CHECK(CheckCases(**tokenizer, "umt5-spiece") > 100);
    CHECK((*tokenizer)->unk_id() == 3);
  }
  CHECK(*EmbeddedSentencePiece(directory / "umt5.safetensors") == spiece);
}

TEST_CASE("A SentencePiece file that is written is read as the same", "[tokenizer]") {
  const std::string bytes = FileBytes(Data("tokenizers/umt5-spiece/spiece.model"));
  const auto file = ReadSentencePieceFile(bytes);
  REQUIRE(file.has_value());
  CHECK(file->byte_fallback);
  const std::string written = WriteSentencePieceFile(*file);
  const auto again = ReadSentencePieceFile(written);
  REQUIRE(again.has_value());
  REQUIRE(again->pieces.size() == file->pieces.size());
  for (size_t i = 0; i < file->pieces.size(); ++i) {
    CHECK(again->pieces[i].piece == file->pieces[i].piece);
    CHECK(again->pieces[i].score == file->pieces[i].score);
    CHECK(again->pieces[i].type == file->pieces[i].type);
  }
  CHECK(again->charsmap == file->charsmap);
  CHECK(again->byte_fallback);
}

// Writes the builder's GGUF file and loads the tokenizer in it.
absl::Status Load(const GgufBuilder& builder) {
  TemporaryDirectory directory;
  WriteBytes(directory / "model.gguf", builder.File());
  return LoadTokenizer(directory / "model.gguf", "t5").status();
}

GgufBuilder WithTokens(uint64_t tokens, uint64_t scores, const std::string& model = "t5") {
  GgufBuilder builder;
  std::string texts, numbers, types;
  for (uint64_t i = 0; i < tokens; ++i) texts += GgufBuilder::Text(absl::StrCat("t", i));
  for (uint64_t i = 0; i < scores; ++i) {
    numbers += GgufBuilder::Bytes<float>(-1.0F);
    types += GgufBuilder::Bytes<int32_t>(1);
  }
  builder.Key("general.architecture", "t5encoder")
      .Key("tokenizer.ggml.model", model)
      .Array("tokenizer.ggml.tokens", 8, tokens, texts)
      .Array("tokenizer.ggml.scores", 6, scores, numbers)
      .Array("tokenizer.ggml.token_type", 5, scores, types);
  return builder;
}

TEST_CASE("Damaged tokenizers of GGUF files are refused", "[tokenizer]") {
  CHECK(Load(WithTokens(8, 8)).ok());
  CHECK(absl::IsNotFound(Load(WithTokens(8, 8, "llama"))));
  CHECK_THAT(std::string(Load(WithTokens(8, 7)).message()),
             ContainsSubstring("8 tokens, but 7 scores"));
  CHECK(absl::IsInvalidArgument(Load(WithTokens(0, 0))));
  GgufBuilder twice = WithTokens(8, 8);
  CHECK(absl::IsInvalidArgument(
      Load(twice.Array("tokenizer.ggml.precompiled_charsmap", 1, 3, "abc"))));
}

}  // namespace
}  // namespace quintet
