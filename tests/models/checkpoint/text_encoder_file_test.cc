#include "models/checkpoint/text_encoder_file.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "kernels/runtime/thread_pool.h"
#include "models/config/config.h"
#include "models/weights/weights.h"
#include "tests/catch.h"
#include "tests/models/checkpoint/checkpoint.h"
#include "tests/models/weights/equal_weights.h"

namespace quintet {
namespace {

using Catch::Matchers::ContainsSubstring;

// The encoder of a golden case.
TestTensors Encoder(const std::string& golden) {
  TestTensors tensors = ReadTensors(GoldenDirectory(golden));
  std::erase_if(tensors, [](const auto& tensor) {
    return tensor.first.rfind("decoder.", 0) == 0 || tensor.first == "lm_head.weight";
  });
  return tensors;
}

bool IsLinear(const std::string& name, const TestTensor& tensor) {
  return tensor.shape.size() == 2 && name.find("shared") == std::string::npos &&
         name.find("relative") == std::string::npos;
}

// Writes bytes as a tensor of any type.
struct RawTensor {
  StoredType type;
  std::vector<int64_t> shape;
  std::string bytes;
};
using RawTensors = std::map<std::string, RawTensor>;

void WriteRaw(const std::string& path, const RawTensors& tensors,
              const std::map<std::string, std::string>& metadata = {}) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.type, tensor.shape});
  auto writer = SafetensorsWriter::Create(path, specs, metadata);
  REQUIRE(writer.ok());
  for (const auto& [name, tensor] : tensors) {
    REQUIRE(writer->Append(tensor.bytes.data(), static_cast<int64_t>(tensor.bytes.size())).ok());
  }
  REQUIRE(writer->Finish().ok());
}

RawTensor Floats(const std::vector<int64_t>& shape, const std::vector<float>& values) {
  return {StoredType::kF32, shape,
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4)};
}

RawTensor JsonTensor(const std::string& text) {
  return {StoredType::kU8, {static_cast<int64_t>(text.size())}, text};
}

// A quantized encoder: the tensors of its file, and their dequantized values.
struct Quantized {
  RawTensors file;
  TestTensors values;
};

// Stores the matrices of linear layers as e4m3 and all other tensors as bf16. The tensor LAYER +
// `scale` holds the scale of a matrix, 0.03, or one scale per row if `by_row`.
Quantized QuantizeEncoder(const std::string& scale, bool by_row) {
  Quantized result;
  for (const auto& [name, tensor] : Encoder("t5-v1_1")) {
    TestTensor exact = {StoredType::kF32, tensor.shape, tensor.values};
    RawTensor raw = {StoredType::kBF16, tensor.shape, std::string(tensor.values.size() * 2, '\0')};
    if (!IsLinear(name, tensor)) {
      ConvertFromF32(tensor.values.data(), static_cast<int64_t>(tensor.values.size()), DType::kBF16,
                     raw.bytes.data());
    } else {
      raw = {StoredType::kF8E4M3, tensor.shape, ""};
      const auto rows = static_cast<size_t>(tensor.shape[0]);
      const size_t columns = tensor.values.size() / rows;
      std::vector<float> scales(by_row ? rows : 1, 0.03F);
      for (size_t r = 0; by_row && r < rows; ++r) scales[r] = 0.001F * static_cast<float>(r + 1);
      for (size_t i = 0; i < tensor.values.size(); ++i) {
        const float s = scales[by_row ? i / columns : 0];
        const uint8_t stored = F32ToF8(tensor.values[i] / s);
        raw.bytes.push_back(static_cast<char>(stored));
        exact.values[i] = F8ToF32(stored) * s;
      }
      const std::string layer = name.substr(0, name.size() - 7);
      const auto count = static_cast<int64_t>(scales.size());
      result.file[layer + scale] =
          Floats(by_row ? std::vector<int64_t>{count, 1} : std::vector<int64_t>{}, scales);
    }
    result.file[name] = raw;
    result.values[name] = exact;
  }
  return result;
}

ModelWeights Load(const std::string& model, WeightType type) {
  ThreadPool pool(2);
  auto config = ReadModelConfig(model);
  INFO(config.status());
  REQUIRE(config.ok());
  auto weights = LoadWeights(model, &*config, {.type = type}, &pool);
  INFO(weights.status());
  REQUIRE(weights.ok());
  return *std::move(weights);
}

void CheckLoadsAs(const std::string& file, const TestTensors& values) {
  TemporaryDirectory directory;
  WriteBytes(directory / "config.json", R"({"model_type": "t5", "architectures": ["T5EncoderModel"],
    "vocab_size": 256, "d_model": 128, "d_kv": 64, "d_ff": 192, "num_layers": 2, "num_heads": 3,
    "feed_forward_proj": "gated-gelu"})");
  WriteTensors(directory.path(), values);
  CHECK(DifferenceOfWeights(Load(file, WeightType::kF32),
                            Load(directory.path(), WeightType::kF32)) == "");
}

std::string OpenError(const std::string& path) {
  return std::string(TextEncoderFile::Open(path).status().message());
}

TEST_CASE("A file of plain tensors needs no config.json", "[text_encoder]") {
  TemporaryDirectory directory;
  const TestTensors tensors = Encoder("t5-v1_1");
  WriteTensors(directory.path(), tensors, "t5xxl_bf16.safetensors");
  CheckLoadsAs(directory / "t5xxl_bf16.safetensors", tensors);
  const ModelConfig config = *ReadModelConfig(directory / "t5xxl_bf16.safetensors");
  CHECK(config.head == Head::kEncoder);
  CHECK(config.family == Family::kT5);
  CHECK(config.gated);
  CHECK(config.heads == 3);
  CHECK(config.head_dim == 64);
}

TEST_CASE("Scales of whole matrices and of rows are applied exactly", "[text_encoder]") {
  for (const std::string scale : {".scale_weight", ".weight_scale"}) {
    for (const bool by_row : {false, true}) {
      CAPTURE(scale, by_row);
      Quantized quantized = QuantizeEncoder(scale, by_row);
      quantized.file["scaled_fp8"] = {StoredType::kF8E4M3, {0}, ""};
      quantized.file["encoder.block.0.layer.0.SelfAttention.q.scale_input"] = Floats({}, {0.5F});
      TemporaryDirectory directory;
      const std::string path = directory / "t5xxl_fp8_e4m3fn_scaled.safetensors";
      WriteRaw(path, quantized.file);
      CheckLoadsAs(path, quantized.values);
      const auto file = TextEncoderFile::Open(path);
      const StoredTensor* q = file->Find("encoder.block.0.layer.0.SelfAttention.q.weight");
      CHECK(q->type == StoredType::kF8E4M3);
      CHECK(file->Find("encoder.block.0.layer.0.SelfAttention.q.scales")->shape ==
            std::vector<int64_t>{192});
      CHECK(file->Find("scaled_fp8") == nullptr);
    }
  }
}

TEST_CASE("Formats are declared by comfy_quant or by the metadata", "[text_encoder]") {
  const std::string layer = "encoder.block.0.layer.0.SelfAttention.q";
  TemporaryDirectory directory;
  const std::string path = directory / "encoder.safetensors";
  const auto write = [&](const std::string& config, StoredType type, bool in_metadata) {
    Quantized quantized = QuantizeEncoder(".weight_scale", false);
    quantized.file[layer + ".weight"].type = type;
    std::map<std::string, std::string> metadata;
    if (in_metadata) {
      metadata["_quantization_metadata"] =
          R"({"format_version": "1.0", "layers": {")" + layer + R"(": )" + config + "}}";
    } else {
      quantized.file[layer + ".comfy_quant"] = JsonTensor(config);
    }
    std::filesystem::remove(path);
    WriteRaw(path, quantized.file, metadata);
    return quantized.values;
  };
  for (const bool in_metadata : {false, true}) {
    CAPTURE(in_metadata);
    CheckLoadsAs(path, write(R"({"format": "float8_e4m3fn"})", StoredType::kU8, in_metadata));
    write(R"({"format": "nvfp4"})", StoredType::kU8, in_metadata);
    CHECK_THAT(OpenError(path), ContainsSubstring("format \"nvfp4\" is not supported"));
    write(R"({"format": "int8_tensorwise", "convrot": true})", StoredType::kI8, in_metadata);
    CHECK_THAT(OpenError(path), ContainsSubstring("with convrot is not supported"));
    write(R"({"format": "float8_e5m2"})", StoredType::kF8E4M3, in_metadata);
    CHECK_THAT(OpenError(path), ContainsSubstring("does not fit F8_E4M3"));
    write("[", StoredType::kU8, in_metadata);
    CHECK_FALSE(OpenError(path).empty());
  }
}

TEST_CASE("int8 matrices keep their values and scales", "[text_encoder]") {
  TemporaryDirectory directory;
  Quantized quantized = QuantizeEncoder(".weight_scale", false);
  for (auto& [name, tensor] : quantized.values) {
    if (!IsLinear(name, tensor)) continue;
    RawTensor& raw = quantized.file[name];
    raw.type = StoredType::kI8;
    for (size_t i = 0; i < raw.bytes.size(); ++i) {
      tensor.values[i] = static_cast<float>(static_cast<int8_t>(raw.bytes[i])) * 0.03F;
    }
    quantized.file[name.substr(0, name.size() - 7) + ".comfy_quant"] =
        JsonTensor(R"({"format": "int8_tensorwise"})");
  }
  WriteRaw(directory / "encoder.safetensors", quantized.file);
  CheckLoadsAs(directory / "encoder.safetensors", quantized.values);
}

TEST_CASE("fp8 without scales is read as it is, vectors and embeddings as well", "[text_encoder]") {
  for (const StoredType type : {StoredType::kF8E4M3, StoredType::kF8E5M2}) {
    RawTensors file;
    TestTensors values;
    for (const auto& [name, tensor] : Encoder("t5-v1_1")) {
      RawTensor raw = {type, tensor.shape, ""};
      TestTensor exact = {StoredType::kF32, tensor.shape, tensor.values};
      for (float& value : exact.values) {
        const uint8_t stored = type == StoredType::kF8E4M3
                                   ? F32ToF8(value)
                                   : static_cast<uint8_t>(F32ToF16(value) >> 8);
        raw.bytes.push_back(static_cast<char>(stored));
        value = type == StoredType::kF8E4M3 ? F8ToF32(stored)
                                            : F16ToF32(static_cast<uint16_t>(stored << 8));
      }
      file[name] = raw;
      values[name] = exact;
    }
    TemporaryDirectory directory;
    WriteRaw(directory / "t5xxl_fp8.safetensors", file);
    CheckLoadsAs(directory / "t5xxl_fp8.safetensors", values);
  }
}

TEST_CASE("A UMT5 has a bias per layer, and may have a tokenizer and Wan's names",
          "[text_encoder]") {
  const std::pair<std::string, std::string> renames[] = {
      {"encoder.block.", "blocks."},
      {"layer.0.SelfAttention.relative_attention_bias", "pos_embedding.embedding"},
      {"layer.0.SelfAttention.", "attn."},
      {"layer.0.layer_norm", "norm1"},
      {"layer.1.layer_norm", "norm2"},
      {"layer.1.DenseReluDense.wi_0", "ffn.gate.0"},
      {"layer.1.DenseReluDense.wi_1", "ffn.fc1"},
      {"layer.1.DenseReluDense.wo", "ffn.fc2"},
      {"shared.weight", "token_embedding.weight"},
      {"encoder.final_layer_norm", "norm"}};
  TestTensors renamed;
  const TestTensors tensors = Encoder("umt5");
  for (const auto& [name, tensor] : tensors) {
    std::string other = name;
    for (const auto& [ours, wan] : renames) {
      if (const size_t at = other.find(ours); at != std::string::npos) {
        other.replace(at, ours.size(), wan);
      }
    }
    renamed[other] = tensor;
  }
  TemporaryDirectory directory;
  WriteTensors(directory.path(), tensors, "umt5.safetensors");
  WriteTensors(directory.path(), renamed, "wan.safetensors");
  for (const char* file : {"umt5.safetensors", "wan.safetensors"}) {
    CHECK(ReadModelConfig(directory / file)->family == Family::kUMT5);
  }
  CHECK(DifferenceOfWeights(Load(directory / "umt5.safetensors", WeightType::kF32),
                            Load(directory / "wan.safetensors", WeightType::kF32)) == "");
  const auto file = TextEncoderFile::Open(directory / "umt5.safetensors");
  const absl::Status none = file->SentencePieceModel().status();
  CHECK(absl::IsNotFound(none));
  CHECK(none.message().find("set --tokenizer") != absl::string_view::npos);
}

TEST_CASE("A prefix before all names is found", "[text_encoder]") {
  TestTensors tensors;
  for (const auto& [name, tensor] : Encoder("t5-v1_1")) {
    tensors["text_encoders.t5xxl.transformer." + name] = tensor;
  }
  tensors["text_encoders.clip_l.transformer.text_model.x"] = {StoredType::kF32, {1}, {0.0F}};
  TemporaryDirectory directory;
  WriteTensors(directory.path(), tensors, "sd3.safetensors");
  CheckLoadsAs(directory / "sd3.safetensors", Encoder("t5-v1_1"));
}

TEST_CASE("Other files and damaged scales are refused", "[text_encoder]") {
  TemporaryDirectory directory;
  const std::string path = directory / "encoder.safetensors";
  const auto write = [&](const RawTensors& tensors) {
    std::filesystem::remove(path);
    WriteRaw(path, tensors);
  };
  write({{"text_model.encoder.layers.0.x", Floats({1}, {0})}});
  CHECK_THAT(OpenError(path), ContainsSubstring("CLIP text encoder"));
  write({});
  CHECK_THAT(OpenError(path), ContainsSubstring("it has no tensors"));
  const std::string layer = "encoder.block.0.layer.0.SelfAttention.q";
  Quantized quantized = QuantizeEncoder(".weight_scale", false);
  RawTensor& scale = quantized.file[layer + ".weight_scale"];
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), 1e37F}) {
    scale = Floats({}, {bad});
    write(quantized.file);
    CHECK_THAT(OpenError(path), ContainsSubstring("expected finite scales"));
  }
  scale = Floats({7}, std::vector<float>(7, 1.0F));
  write(quantized.file);
  CHECK_THAT(OpenError(path), ContainsSubstring("expected one float or 192"));
  scale = {StoredType::kI32, {}, std::string(4, '\0')};
  write(quantized.file);
  CHECK_THAT(OpenError(path), ContainsSubstring("I32"));
  scale = Floats({}, {1.0F});
  quantized.file[layer + ".weight_scale_2"] = Floats({}, {1.0F});
  write(quantized.file);
  CHECK_THAT(OpenError(path), ContainsSubstring(".weight_scale_2 are not supported"));
}

}  // namespace
}  // namespace quintet
