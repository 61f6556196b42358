#include "models/checkpoint/pipeline_directory.h"

#include <filesystem>

#include "models/checkpoint/find_model.h"
#include "tests/catch.h"
#include "tests/models/checkpoint/checkpoint.h"

namespace quintet {
namespace {

using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

void AddComponent(const TemporaryDirectory& pipeline, const std::string& folder,
                  const std::string& golden) {
  fs::create_directory(pipeline / folder);
  for (const char* file : {"config.json", "model.safetensors"}) {
    fs::copy_file(GoldenDirectory(golden) + "/" + file, pipeline / folder + "/" + file);
  }
}

TEST_CASE("A pipeline with one T5 text encoder is that text encoder", "[pipeline]") {
  TemporaryDirectory pipeline;
  WriteBytes(pipeline / "model_index.json",
             R"({"_class_name": "FluxPipeline", "scheduler": ["diffusers", "X"],
                 "text_encoder": ["transformers", "CLIPTextModel"],
                 "text_encoder_2": ["transformers", "T5EncoderModel"],
                 "image_encoder": [null, null],
                 "tokenizer": ["transformers", "CLIPTokenizer"],
                 "tokenizer_2": ["transformers", "T5TokenizerFast"]})");
  AddComponent(pipeline, "text_encoder_2", "t5-encoder");
  fs::create_directory(pipeline / "tokenizer_2");
  CHECK(*FindModel(pipeline.path()) == pipeline / "text_encoder_2");
  CHECK(*FindModel(pipeline.path() + "/") == pipeline / "text_encoder_2");
  const std::string encoder = pipeline / "text_encoder_2";
  CHECK(fs::equivalent(*FindTokenizer("", encoder), pipeline / "tokenizer_2"));
  CHECK(*FindTokenizer(pipeline.path(), encoder) == pipeline.path());
  CHECK(absl::IsNotFound(FindTokenizer(pipeline / "none", encoder).status()));
  WriteBytes(encoder + "/spiece.model", "");
  CHECK(*FindTokenizer("", encoder) == encoder);
}

TEST_CASE("The folder of a text encoder is found with its tokenizer", "[pipeline]") {
  TemporaryDirectory pipeline;
  WriteBytes(pipeline / "model_index.json",
             R"({"text_encoder": ["transformers", "UMT5EncoderModel"],
                 "tokenizer": ["transformers", "T5TokenizerFast"]})");
  AddComponent(pipeline, "text_encoder", "umt5");
  CHECK(TokenizerBeside(pipeline / "text_encoder") == pipeline / "text_encoder");  // no folder
  fs::create_directory(pipeline / "tokenizer");
  CHECK(fs::equivalent(TokenizerBeside(pipeline / "text_encoder/"), pipeline / "tokenizer"));
  WriteBytes(pipeline / "model_index.json", R"({"tokenizer": [null, null]})");
  CHECK(TokenizerBeside(pipeline / "text_encoder") == pipeline / "text_encoder");
}

TEST_CASE("Pipelines with no or several T5 text encoders name the folders", "[pipeline]") {
  TemporaryDirectory pipeline;
  const auto error = [&](const std::string& index) {
    WriteBytes(pipeline / "model_index.json", index);
    const auto found = FindModel(pipeline.path());
    CHECK(absl::IsInvalidArgument(found.status()));
    return std::string(found.status().message());
  };
  CHECK_THAT(error(R"({"text_encoder": ["transformers", "CLIPTextModel"]})"),
             ContainsSubstring("no T5 text encoder, but text_encoder (CLIPTextModel)"));
  CHECK_THAT(error(R"({"text_encoder": ["transformers", "T5EncoderModel"],
                       "text_encoder_2": ["transformers", "UMT5EncoderModel"]})"),
             ContainsSubstring("pass the folder of one of them: " + pipeline / "text_encoder, "));
  CHECK_THAT(error("[]"), ContainsSubstring("expected an object"));
  CHECK_THAT(error(R"({"../x": ["transformers", "T5EncoderModel"]})"),
             ContainsSubstring("no T5 text encoder"));
}

TEST_CASE("Variants of a text encoder are named in the error", "[pipeline]") {
  TemporaryDirectory pipeline;
  WriteBytes(pipeline / "model_index.json", R"({"text_encoder": ["x", "T5EncoderModel"]})");
  AddComponent(pipeline, "text_encoder", "t5-encoder");
  const std::string folder = pipeline / "text_encoder";
  fs::rename(folder + "/model.safetensors", folder + "/model.safetensors.index.fp16.json");
  const auto found = FindModel(pipeline.path());
  CHECK_THAT(std::string(found.status().message()),
             ContainsSubstring("model.safetensors.index.fp16.json: variants are not read"));
}

}  // namespace
}  // namespace quintet
