#include "models/checkpoint/gguf.h"

#include <cstring>
#include <string>
#include <vector>

#include "kernels/runtime/thread_pool.h"
#include "models/checkpoint/gguf_blocks.h"
#include "models/checkpoint/safetensors.h"
#include "models/config/config.h"
#include "models/config/derived_config.h"
#include "models/weights/weights.h"
#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/models/checkpoint/checkpoint.h"
#include "tests/models/checkpoint/gguf_builder.h"
#include "tests/models/weights/equal_weights.h"

namespace quintet {
namespace {

using Catch::Matchers::ContainsSubstring;

// Returns the path of a test file that tools/format_oracle.py wrote with the gguf package.
std::string Recorded(const std::string& name) {
  return std::string(QUINTET_SOURCE_DIR "/tests/data/formats/") + name;
}

std::vector<char> ReadAll(const WeightFiles& files, const StoredTensor& tensor) {
  std::vector<char> bytes(static_cast<size_t>(tensor.bytes));
  const absl::Status status = files.Read(tensor, 0, tensor.bytes, bytes.data());
  INFO(status);
  REQUIRE(status.ok());
  return bytes;
}

TEST_CASE("Decoded blocks equal those of the gguf package to the bit", "[gguf]") {
  const auto recorded = SafetensorsReader::OpenFile(Recorded("blocks.safetensors"));
  REQUIRE(recorded.ok());
  int types = 0;
  for (uint32_t type = 0; type < 64; ++type) {
    const GgufEncoding* encoding = FindGgufEncoding(type);
    if (encoding == nullptr || encoding->decode == nullptr) continue;
    const std::string name = encoding->name;
    CAPTURE(name);
    const StoredTensor* blocks = recorded->Find(name + ".blocks");
    const StoredTensor* values = recorded->Find(name + ".values");
    REQUIRE((blocks != nullptr && values != nullptr));
    REQUIRE(blocks->shape[1] == encoding->block_bytes);
    REQUIRE(values->shape[1] == encoding->block_values);
    const std::vector<char> stored = ReadAll(*recorded, *blocks);
    const std::vector<char> expected = ReadAll(*recorded, *values);
    std::vector<float> decoded(static_cast<size_t>(values->bytes / 4));
    for (int64_t b = 0; b < blocks->shape[0]; ++b) {
      encoding->decode(reinterpret_cast<const uint8_t*>(stored.data()) + b * encoding->block_bytes,
                       decoded.data() + b * encoding->block_values);
    }
    CHECK(std::memcmp(decoded.data(), expected.data(), expected.size()) == 0);
    ++types;
  }
  CHECK(types == 10);
}

TEST_CASE("A GGUF file of the gguf package is read like its decoded checkpoint", "[gguf]") {
  const auto file = GgufReader::Open(Recorded("t5-encoder.gguf"));
  INFO(file.status());
  REQUIRE(file.ok());
  const auto directory = SafetensorsReader::Open(Recorded("t5-encoder"));
  REQUIRE(directory.ok());
  CHECK(file->tensors().size() == directory->tensors().size());
  for (const StoredTensor& expected : directory->tensors()) {
    CAPTURE(expected.name);
    const StoredTensor* tensor = file->Find(expected.name);
    REQUIRE(tensor != nullptr);
    CHECK(tensor->shape == expected.shape);
    const std::vector<char> raw = ReadAll(*file, *tensor);
    std::vector<float> values(raw.size() / static_cast<size_t>(StoredTypeBytes(tensor->type)));
    ConvertToF32(raw.data(), *ToDType(tensor->type), static_cast<int64_t>(values.size()),
                 values.data());
    const std::vector<char> wanted = ReadAll(*directory, expected);
    REQUIRE(values.size() * 4 == wanted.size());
    CHECK(std::memcmp(values.data(), wanted.data(), wanted.size()) == 0);
  }
}

TEST_CASE("Any part of a tensor in a block format can be read", "[gguf]") {
  const auto file = GgufReader::Open(Recorded("t5-encoder.gguf"));
  REQUIRE(file.ok());
  int parts = 0;
  for (const StoredTensor& tensor : file->tensors()) {
    if (tensor.encoding == nullptr) continue;
    const std::vector<char> all = ReadAll(*file, tensor);
    for (const int64_t begin : {int64_t{0}, int64_t{4}, int64_t{31 * 4}, int64_t{300 * 4}}) {
      for (const int64_t bytes : {int64_t{4}, int64_t{33 * 4}, int64_t{600 * 4}}) {
        std::vector<char> part(static_cast<size_t>(bytes));
        REQUIRE(file->Read(tensor, begin, bytes, part.data()).ok());
        CHECK(std::memcmp(part.data(), all.data() + begin, part.size()) == 0);
        ++parts;
      }
    }
  }
  CHECK(parts > 100);
}

TEST_CASE("The configuration of a GGUF file is that of its source", "[gguf]") {
  const absl::StatusOr<nlohmann::json> derived = ReadConfigFile(Recorded("t5-encoder.gguf"));
  INFO(derived.status());
  REQUIRE(derived.ok());
  const nlohmann::json source = *ReadConfigFile(Recorded("t5-encoder"));
  for (const auto& [field, value] : source.items()) {
    CAPTURE(field);
    REQUIRE(derived->contains(field));
    if (field == "layer_norm_epsilon") {
      CHECK((*derived)[field].get<float>() == value.get<float>());
    } else {
      CHECK((*derived)[field] == value);
    }
  }
}

TEST_CASE("Weights loaded from GGUF equal those of the decoded checkpoint", "[gguf]") {
  ThreadPool pool(2);
  for (const WeightType type : {WeightType::kF32, WeightType::kI8}) {
    const auto load = [&](const std::string& name) {
      auto config = ReadModelConfig(Recorded(name));
      REQUIRE(config.ok());
      auto weights = LoadWeights(Recorded(name), &*config, {.type = type}, &pool);
      INFO(weights.status());
      REQUIRE(weights.ok());
      return *std::move(weights);
    };
    const ModelWeights file = load("t5-encoder.gguf"), directory = load("t5-encoder");
    CHECK(file.parameters == directory.parameters);
    if (type == WeightType::kF32) CHECK(DifferenceOfWeights(file, directory).empty());
    // An embedding in a block format is loaded as f32 if matrices are f32, and as bf16 if they are
    // i8.
    CHECK(file.embedding.dtype == (type == WeightType::kF32 ? DType::kF32 : DType::kBF16));
    ModelConfig copy = *ReadModelConfig(Recorded("t5-encoder.gguf"));
    const auto described =
        DescribeWeights(Recorded("t5-encoder.gguf"), &copy, {.type = type}, &pool);
    REQUIRE(described.ok());
    CHECK(described->bytes == file.bytes);
  }
}

// Opens the bytes as a file.
absl::Status Open(const std::string& bytes) {
  TemporaryDirectory directory;
  WriteBytes(directory / "model.gguf", bytes);
  return GgufReader::Open(directory / "model.gguf").status();
}

std::string MessageOf(const std::string& bytes) { return std::string(Open(bytes).message()); }

GgufBuilder MinimalFile() {
  GgufBuilder file;
  file.Key("general.architecture", "t5encoder");
  return file;
}

TEST_CASE("Values of all types are read", "[gguf]") {
  GgufBuilder builder = MinimalFile();
  builder.version = 2;
  builder.Key("u8", 0, GgufBuilder::Bytes<uint8_t>(200))
      .Key("i8", 1, GgufBuilder::Bytes<int8_t>(-2))
      .Key("u16", 2, GgufBuilder::Bytes<uint16_t>(60000))
      .Key("i16", 3, GgufBuilder::Bytes<int16_t>(-3))
      .Key("u32", 4, GgufBuilder::Bytes<uint32_t>(4000000000u))
      .Key("i32", 5, GgufBuilder::Bytes<int32_t>(-4))
      .Key("f32", 6, GgufBuilder::Bytes<float>(0.5F))
      .Key("bool", 7, GgufBuilder::Bytes<uint8_t>(1))
      .Key("u64", 10, GgufBuilder::Bytes<uint64_t>(UINT64_MAX))
      .Key("i64", 11, GgufBuilder::Bytes<int64_t>(-5))
      .Key("f64", 12, GgufBuilder::Bytes<double>(0.25))
      .Array("numbers", 3, 2, GgufBuilder::Bytes<int16_t>(-7) + GgufBuilder::Bytes<int16_t>(8))
      .Array("texts", 8, 2, GgufBuilder::Text("a") + GgufBuilder::Text(""))
      .Array("bytes", 1, 3, "xyz");
  TemporaryDirectory directory;
  WriteBytes(directory / "model.gguf", builder.File());
  const auto reader = GgufReader::Open(directory / "model.gguf");
  INFO(reader.status());
  REQUIRE(reader.ok());
  const GgufHeader& header = reader->header();
  CHECK(header.Integer("u8") == 200);
  CHECK(header.Integer("i8") == -2);
  CHECK(header.Integer("u16") == 60000);
  CHECK(header.Integer("i16") == -3);
  CHECK(header.Integer("u32") == 4000000000);
  CHECK(header.Integer("i32") == -4);
  CHECK(header.Number("f32") == 0.5);
  CHECK(header.Integer("f32") == std::nullopt);
  CHECK(header.Integer("bool") == 1);
  CHECK(header.Integer("u64") == std::nullopt);  // does not fit
  CHECK(header.Integer("i64") == -5);
  CHECK(header.Number("f64") == 0.25);
  CHECK(*header.Numbers("numbers") == std::vector<double>{-7, 8});
  CHECK(*header.Strings("texts", 100) == std::vector<std::string>{"a", ""});
  CHECK(*header.Bytes("bytes") == "xyz");
  CHECK(absl::IsNotFound(header.Bytes("none").status()));
  CHECK(absl::IsInvalidArgument(header.Bytes("numbers").status()));
  CHECK(absl::IsInvalidArgument(header.Strings("numbers", 100).status()));
  CHECK(absl::IsInvalidArgument(header.Numbers("texts").status()));
}

TEST_CASE("Damaged GGUF files are refused with the place", "[gguf]") {
  const std::string four(16, '\0');
  CHECK(absl::IsInvalidArgument(Open("")));
  CHECK_THAT(MessageOf("GGML" + std::string(60, '\0')), ContainsSubstring("not a GGUF file"));
  GgufBuilder old = MinimalFile();
  old.version = 1;
  CHECK_THAT(MessageOf(old.File()), ContainsSubstring("version 1 is not supported"));
  old.version = 0x03000000;
  CHECK_THAT(MessageOf(old.File()), ContainsSubstring("big-endian"));
  CHECK_THAT(MessageOf(MinimalFile().File(0, uint64_t{1} << 60)),
             ContainsSubstring("exceeds the limit"));
  CHECK_THAT(MessageOf(MinimalFile().File(99999, 1)), ContainsSubstring("do not fit"));
  CHECK_THAT(MessageOf(MinimalFile().Key("x", 77, "").File()),
             ContainsSubstring("unknown type 77"));
  CHECK_THAT(MessageOf(MinimalFile().Key("x", 1u).Key("x", 2u).File()),
             ContainsSubstring("key x appears twice"));
  CHECK_THAT(MessageOf(MinimalFile().Array("x", 9, 1, four).File()),
             ContainsSubstring("arrays of type 9 are not supported"));
  CHECK_THAT(MessageOf(MinimalFile().Array("x", 0, uint64_t{1} << 40, four).File()),
             ContainsSubstring("key x: elements"));
  CHECK_THAT(MessageOf(MinimalFile().Key("x", 8, GgufBuilder::Bytes<uint64_t>(UINT64_MAX)).File()),
             ContainsSubstring("key x"));
  CHECK_THAT(MessageOf(MinimalFile().Key("general.alignment", 3u).File()),
             ContainsSubstring("expected a power of two"));
  CHECK_THAT(MessageOf(GgufBuilder().Key("general.architecture", "llama").File()),
             ContainsSubstring("expected t5encoder or t5, got \"llama\""));
}

TEST_CASE("Damaged tensors of GGUF files are refused with their name", "[gguf]") {
  const std::string four(16, '\0');
  CHECK_THAT(MessageOf(MinimalFile().Tensor("x", {4}, 0, four).Tensor("x", {4}, 0, four).File()),
             ContainsSubstring("tensor x appears twice"));
  CHECK_THAT(MessageOf(MinimalFile().Tensor("x", {}, 0, four).File()),
             ContainsSubstring("dimensions"));
  CHECK_THAT(MessageOf(MinimalFile().Tensor("x", {1, 1, 1, 1, 1}, 0, four).File()),
             ContainsSubstring("dimensions"));
  CHECK_THAT(
      MessageOf(MinimalFile().Tensor("x", {uint64_t{1} << 40, uint64_t{1} << 40}, 0, "").File()),
      ContainsSubstring("overflows"));
  CHECK_THAT(MessageOf(MinimalFile().Tensor("x", {UINT64_MAX}, 0, "").File()),
             ContainsSubstring("tensor x"));
  CHECK_THAT(MessageOf(MinimalFile().Tensor("x", {100}, 0, four).File()),
             ContainsSubstring("ends after the file"));
  CHECK_THAT(MessageOf(MinimalFile().Described("x", {4}, 0, uint64_t{1} << 62, four).File()),
             ContainsSubstring("ends after the file"));
  CHECK_THAT(MessageOf(MinimalFile().Described("x", {4}, 0, 8, four + four).File()),
             ContainsSubstring("alignment"));
  CHECK_THAT(
      MessageOf(MinimalFile().Tensor("x", {4}, 0, four).Described("y", {4}, 0, 0, "").File()),
      ContainsSubstring("overlaps"));
  CHECK_THAT(MessageOf(MinimalFile().Tensor("x", {40}, 8, std::string(34, '\0')).File()),
             ContainsSubstring("not whole blocks of 32"));
  const absl::Status unsupported = Open(MinimalFile().Tensor("x", {256}, 23, four).File());
  CHECK(absl::IsUnimplemented(unsupported));
  CHECK_THAT(std::string(unsupported.message()), ContainsSubstring("IQ4_XS is not supported"));
}

TEST_CASE("A GGUF file that ends anywhere is refused", "[gguf]") {
  GgufBuilder builder = MinimalFile();
  builder.Array("texts", 8, 2, GgufBuilder::Text("one") + GgufBuilder::Text("two"))
      .Tensor("x", {4}, 0, std::string(16, '\0'));
  const std::string whole = builder.File();
  REQUIRE(Open(whole).ok());
  for (size_t bytes = 0; bytes < whole.size() - 16; ++bytes) {
    CAPTURE(bytes);
    CHECK(absl::IsInvalidArgument(Open(whole.substr(0, bytes))));
  }
}

TEST_CASE("A NaN among the scales of a block is an error of the tensor", "[gguf]") {
  TemporaryDirectory directory;
  std::string bytes = FileBytes(Recorded("t5-encoder.gguf"));
  const auto reader = GgufReader::Open(Recorded("t5-encoder.gguf"));
  const StoredTensor* tensor = nullptr;
  for (const StoredTensor& t : reader->tensors()) {
    if (t.encoding != nullptr && std::string(t.encoding) == "Q8_0") tensor = &t;
  }
  REQUIRE(tensor != nullptr);
  bytes[static_cast<size_t>(tensor->offset_bytes)] = '\xff';
  bytes[static_cast<size_t>(tensor->offset_bytes) + 1] = '\x7f';
  WriteBytes(directory / "model.gguf", bytes);
  ThreadPool pool(1);
  auto config = ReadModelConfig(directory / "model.gguf");
  REQUIRE(config.ok());
  const auto weights = LoadWeights(directory / "model.gguf", &*config, {}, &pool);
  CHECK(absl::IsInvalidArgument(weights.status()));
  CHECK_THAT(std::string(weights.status().message()), ContainsSubstring(tensor->name));
}

}  // namespace
}  // namespace quintet
