#include "models/checkpoint/foreign_files.h"

#include <filesystem>

#include "tests/catch.h"
#include "tests/models/checkpoint/checkpoint.h"

namespace quintet {
namespace {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("A directory in another format is named, with what to do") {
  const struct {
    const char* file;
    const char* expected;
  } cases[] = {
      {"pytorch_model.bin", "python3 -c"},
      {"pytorch_model.bin.index.json", "python3 -c"},
      {"pytorch_model-00001-of-00002.bin", "python3 -c"},
      {"model.fp16.safetensors", "variants are not read; rename the file to model.safetensors"},
      {"model.fp16-00001-of-00002.safetensors", "variants are not read"},
      {"pytorch_model.fp16.bin", "variants are not read"},
      {"model.safetensors.index.fp16.json", "variants are not read"},
      {"model-00001-of-00002.safetensors", "without model.safetensors.index.json"},
      {"flan-t5-q4_k.gguf", "a GGUF model is read from its file"},
      {"adapter_config.json", "quintet convert BASE"},
      {"adapter_model.safetensors", "quintet convert BASE"},
      {"tf_model.h5", "from_tf=True"},
      {"tf_model-00001-of-00002.h5", "from_tf=True"},
      {"saved_model.pb", "TensorFlow"},
      {"flax_model.msgpack", "from_flax=True"},
      {"encoder_model.onnx", "ONNX models are not supported"},
      {"openvino_model.xml", "OpenVINO models are not supported"},
      {"model.bin", "CTranslate2"},
      {"consolidated.safetensors", "expected the name model.safetensors"},
      {"last.ckpt", "save_pretrained"},
  };
  for (const auto& c : cases) {
    INFO(c.file);
    TemporaryDirectory directory;
    WriteBytes(directory / c.file, "{}");
    CHECK(absl::IsInvalidArgument(CheckModelFiles(directory.path())));
    CHECK_THAT(Message(CheckModelFiles(directory.path())), ContainsSubstring("no config.json"));
    WriteBytes(directory / "config.json", "{}");
    const absl::Status status = CheckModelFiles(directory.path());
    CHECK(absl::IsInvalidArgument(status));
    CHECK_THAT(Message(status), ContainsSubstring("no weights"));
    CHECK_THAT(Message(status), ContainsSubstring(std::string(c.file) + ":"));
    CHECK_THAT(Message(status), ContainsSubstring(c.expected));
    CHECK_THAT(
        ExplainFile(directory / c.file),
        ContainsSubstring(std::string(c.file) == "adapter_config.json" ? "adapter" : c.expected));
  }
}

TEST_CASE("A directory of models, and one of nothing, are told apart") {
  TemporaryDirectory directory;
  CHECK(absl::IsNotFound(CheckModelFiles(directory.path())));
  std::filesystem::create_directory(directory / "checkpoint-500");
  for (const char* file : {"config.json", "model.safetensors"}) {
    WriteBytes(directory / ("checkpoint-500/" + std::string(file)), "{}");
  }
  WriteBytes(directory / "optimizer.pt", "x");
  CHECK_THAT(Message(CheckModelFiles(directory.path())),
             ContainsSubstring("sub-directories: checkpoint-500; pass one of these"));
  CHECK(CheckModelFiles(directory / "checkpoint-500").ok());
}

TEST_CASE("Unused files that could change results are listed, others are not") {
  const auto warnings = [](const std::vector<std::string>& files, const std::string& config) {
    TemporaryDirectory directory;
    WriteBytes(directory / "config.json", config);
    for (const std::string& file : files) WriteBytes(directory / file, "{}");
    return UnusedFileWarnings(directory.path());
  };
  const std::string config = R"({"model_type": "t5"})";
  CHECK(warnings({"model.safetensors", "pytorch_model.bin", "tf_model.h5", "README.md",
                  "spiece.model", "tokenizer.model", "training_args.bin"},
                 config)
            .empty());
  const struct {
    const char* file;
    const char* expected;
  } cases[] = {
      {"adapter_config.json", "the PEFT adapter is not applied"},
      {"model.fp16.safetensors", "model.safetensors is used instead"},
      {"model.safetensors.index.json", "model.safetensors is used instead"},
      {"model-00001-of-00002.safetensors", "model.safetensors is used instead of the shards"},
      {"extra.safetensors", "its tensors are not read"},
      {"tokenizer.model", "tokenizers are read from tokenizer.json"},
      {"adapter_model.safetensors", "the PEFT adapter is not applied"},
      {"config_sentence_transformers.json", "modules.json, which names the modules"},
  };
  for (const auto& c : cases) {
    INFO(c.file);
    const auto found = warnings({"model.safetensors", c.file}, config);
    REQUIRE(found.size() == 1);
    CHECK_THAT(found[0], ContainsSubstring(std::string(c.file) + ": not used: "));
    CHECK_THAT(found[0], ContainsSubstring(c.expected));
  }
  CHECK(warnings({"model.safetensors", "adapter_config.json", "adapter_model.safetensors"}, config)
            .size() == 1);
  CHECK(warnings({"model.safetensors", "modules.json", "config_sentence_transformers.json"}, config)
            .empty());
  const char* code = R"({"model_type": "t5", "auto_map": {"AutoModel": "x.Y"}})";
  REQUIRE(warnings({"model.safetensors"}, code).size() == 1);
  CHECK_THAT(warnings({"model.safetensors"}, code)[0], ContainsSubstring("auto_map"));
  const char* fat5 = R"({"model_type": "flash_t5", "auto_map": {"AutoModel": "x.Y"}})";
  CHECK(warnings({"model.safetensors"}, fat5).empty());
  TemporaryDirectory sentence;
  std::filesystem::create_directory(sentence / "1_Pooling");
  WriteBytes(sentence / "1_Pooling/config.json", "{}");
  REQUIRE(UnusedFileWarnings(sentence.path()).size() == 1);
  CHECK_THAT(UnusedFileWarnings(sentence.path())[0],
             ContainsSubstring("1_Pooling/config.json: not used: modules.json"));
  WriteBytes(sentence / "modules.json", "[]");
  CHECK(UnusedFileWarnings(sentence.path()).empty());
  // The index names only the first of the two shards, so only the second shard causes a warning
  // that it is not used.
  TemporaryDirectory sharded;
  WriteBytes(sharded / "model.safetensors.index.json",
             R"({"weight_map": {"a": "model-00001-of-00001.safetensors"}})");
  WriteBytes(sharded / "model-00001-of-00001.safetensors", "");
  WriteBytes(sharded / "model-00009-of-00009.safetensors", "");
  const auto found = UnusedFileWarnings(sharded.path());
  REQUIRE(found.size() == 1);
  CHECK_THAT(found[0], ContainsSubstring("model-00009-of-00009.safetensors: not used: its"));
}

}  // namespace
}  // namespace quintet
