#include "models/convert/convert.h"
#include "kernels/linear/weight.h"

#include <limits.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "models/checkpoint/atomic_directory.h"
#include "models/checkpoint/safetensors.h"
#include "models/weights/weights.h"
#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/models/checkpoint/checkpoint.h"
#include "tests/models/scratch_directory.h"
#include "tests/models/weights/equal_weights.h"

namespace quintet {
namespace {

namespace fs = std::filesystem;

ConvertOptions Packed(const std::string& source, const std::string& target,
                      std::optional<DType> dtype) {
  ConvertOptions options;
  options.source = source;
  options.target = target;
  options.dtype = dtype;
  return options;
}

ConvertOptions Renamed(const std::string& source, const std::string& target, ConvertForm form) {
  ConvertOptions options = Packed(source, target, std::nullopt);
  options.form = form;
  return options;
}

ConvertResult MustConvert(const ConvertOptions& options) {
  absl::StatusOr<ConvertResult> result = Convert(options);
  INFO(options.source << ": " << result.status());
  REQUIRE(result.ok());
  return *result;
}

absl::Status Failure(const ConvertOptions& options) { return Convert(options).status(); }

struct Loaded {
  ModelConfig config;
  ModelWeights weights;
};

Loaded MustLoad(const std::string& directory, WeightType type) {
  ThreadPool pool(1);
  absl::StatusOr<ModelConfig> config = ReadModelConfig(directory);
  INFO(directory << ": " << config.status());
  REQUIRE(config.ok());
  absl::StatusOr<ModelWeights> weights = LoadWeights(directory, &*config, {.type = type}, &pool);
  INFO(directory << ": " << weights.status());
  REQUIRE(weights.ok());
  return {*std::move(config), *std::move(weights)};
}

std::vector<std::string> AllCases() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(GoldenDirectory("")))
    names.push_back(entry.path().filename());
  REQUIRE(names.size() >= 29);
  return names;
}

// Copies the checkpoint of a golden case, so that a test can modify it.
std::string CopyCase(const std::string& name, const ScratchDirectory& scratch) {
  const std::string target = scratch / "source";
  fs::create_directory(target);
  for (const char* file : {"config.json", "model.safetensors"}) {
    fs::copy_file(GoldenDirectory(name) + "/" + file, target + "/" + file);
    fs::permissions(target + "/" + file, fs::perms::owner_all);
  }
  return target;
}

// Rewrites a checkpoint's tensors as `shards` files. First calls `edit` for each tensor's bytes.
void Rewrite(const std::string& directory, int shards,
             const std::function<void(const StoredTensor&, std::vector<char>*)>& edit = nullptr) {
  nlohmann::json index;
  {
    const SafetensorsReader files = *SafetensorsReader::Open(directory);
    for (int shard = 0; shard < shards; ++shard) {
      const std::string name =
          shards == 1 ? "new.safetensors" : "part-" + std::to_string(shard) + ".safetensors";
      std::vector<TensorSpec> specs;
      std::vector<char> data;
      for (size_t i = shard; i < files.tensors().size(); i += shards) {
        const StoredTensor& tensor = files.tensors()[i];
        specs.push_back({tensor.name, tensor.type, tensor.shape});
        std::vector<char> bytes(tensor.bytes);
        REQUIRE(files.Read(tensor, 0, tensor.bytes, bytes.data()).ok());
        if (edit) edit(tensor, &bytes);
        data.insert(data.end(), bytes.begin(), bytes.end());
        index["weight_map"][tensor.name] = name;
      }
      SafetensorsWriter writer = *SafetensorsWriter::Create(directory + "/" + name, specs, {});
      REQUIRE(writer.Append(data.data(), data.size()).ok());
      REQUIRE(writer.Finish().ok());
    }
  }
  fs::remove(directory + "/model.safetensors");
  if (shards == 1) {
    fs::rename(directory + "/new.safetensors", directory + "/model.safetensors");
  } else {
    WriteText(directory + "/model.safetensors.index.json", index.dump());
  }
}

void EditConfig(const std::string& directory, const std::function<void(nlohmann::json*)>& edit) {
  nlohmann::json config = nlohmann::json::parse(ReadText(directory + "/config.json"));
  edit(&config);
  WriteText(directory + "/config.json", config.dump());
}

TEST_CASE("Checkpoints packed in f32 load bit-identical to their source") {
  for (const std::string& name : AllCases()) {
    ScratchDirectory scratch;
    MustConvert(Packed(GoldenDirectory(name), scratch / "out", DType::kF32));
    for (WeightType type : {WeightType::kF32, WeightType::kI8}) {
      const Loaded source = MustLoad(GoldenDirectory(name), type);
      const Loaded result = MustLoad(scratch / "out", type);
      INFO(name);
      CHECK(DifferenceOfWeights(source.weights, result.weights) == "");
      CHECK(source.weights.logit_scale == result.weights.logit_scale);
      CHECK(result.config.converted_dtype == "f32");
    }
  }
}

TEST_CASE("Checkpoints packed in int8 or in the source's type load bit-identical to their source") {
  for (const std::string& name : AllCases()) {
    ScratchDirectory scratch;
    INFO(name);
    MustConvert(Packed(GoldenDirectory(name), scratch / "int8", DType::kI8));
    const Loaded source = MustLoad(GoldenDirectory(name), WeightType::kI8);
    CHECK(DifferenceOfWeights(source.weights,
                              MustLoad(scratch / "int8", WeightType::kI8).weights) == "");
    MustConvert(Packed(GoldenDirectory(name), scratch / "same", std::nullopt));
    const Loaded same = MustLoad(scratch / "same", WeightType::kF32);
    CHECK(DifferenceOfWeights(MustLoad(GoldenDirectory(name), WeightType::kF32).weights,
                              same.weights) == "");
    // Converting a directory that is already an output of the conversion gives a file with the same
    // bytes.
    MustConvert(Packed(scratch / "int8", scratch / "again", std::nullopt));
    CHECK(Sha256OfFile(scratch / "int8/model.safetensors") ==
          Sha256OfFile(scratch / "again/model.safetensors"));
  }
}

// A CPU has no fp8 GEMM; there, loading dequantizes fp8 weights.
TEST_CASE("Matrices packed in fp8 are e4m3 with row scales, except ffn_out, and load on a CPU") {
  for (const std::string name : {"t5-v1_0", "mt5", "gpt2", "fat5-rope"}) {
    ScratchDirectory scratch;
    INFO(name);
    CHECK(MustConvert(Packed(GoldenDirectory(name), scratch / "fp8", DType::kF8)).dtype ==
          DType::kF8);
    const auto files = SafetensorsReader::OpenFile(scratch / "fp8/model.safetensors");
    REQUIRE(files.ok());
    int quantized = 0;
    for (const StoredTensor& t : files->tensors()) {
      const std::string stem = t.name.substr(0, t.name.rfind('.'));
      const bool scaled = files->Find(stem + ".scales") != nullptr;
      if (t.name != stem + ".weight") continue;
      CHECK(scaled == (t.type == StoredType::kF8E4M3));
      quantized += scaled;
      if (t.name.find("ffn_out") != std::string::npos) CHECK_FALSE(scaled);  // unchanged
    }
    CHECK(quantized >= 6);
    const Loaded source = MustLoad(GoldenDirectory(name), WeightType::kF32);
    const Loaded result = MustLoad(scratch / "fp8", WeightType::kF32);
    CHECK(result.config.converted_dtype == "fp8");
    const LinearWeight &a = source.weights.decoder.layers[0].qkv,
                       &b = result.weights.decoder.layers[0].qkv;
    std::vector<float> exact(static_cast<size_t>(a.n() * a.k())), rounded(exact.size());
    a.Unpack(0, Tensor::F32(exact.data(), {a.n(), a.k()}));
    b.Unpack(0, Tensor::F32(rounded.data(), {b.n(), b.k()}));
    double worst = 0;
    for (size_t row = 0; row < exact.size(); row += static_cast<size_t>(a.k())) {
      const auto end = row + static_cast<size_t>(a.k());
      float most = 0;
      for (size_t i = row; i < end; ++i) most = std::max(most, std::fabs(exact[i]));
      // The tolerance is half the distance between neighbouring e4m3 values: a 16th of the value (3
      // mantissa bits) or, if larger, half the distance between subnormals, which depends on the
      // row's scale.
      for (size_t i = row; i < end; ++i) {
        const double step = std::max(std::fabs(exact[i]) / 16.0, most / 448.0 / 1024.0);
        worst = std::max(worst, std::fabs(rounded[i] - exact[i]) / step);
      }
    }
    CHECK(worst <= 1.001);
    CHECK(worst > 0.5);
    MustConvert(Packed(scratch / "fp8", scratch / "again", std::nullopt));
    CHECK(Sha256OfFile(scratch / "fp8/model.safetensors") ==
          Sha256OfFile(scratch / "again/model.safetensors"));
  }
}

TEST_CASE("A tied head is stored once, and a converted file contains packed tensors only") {
  ScratchDirectory scratch;
  MustConvert(Packed(GoldenDirectory("t5-v1_0"), scratch / "out", DType::kI8));
  const SafetensorsReader files = *SafetensorsReader::Open(scratch / "out");
  CHECK(files.Find("head.weight") == nullptr);
  REQUIRE(files.Find("embedding.weight") != nullptr);
  CHECK(files.Find("embedding.weight")->type == StoredType::kF32);
  REQUIRE(files.Find("decoder.cross_kv.weight") != nullptr);
  CHECK(files.Find("decoder.cross_kv.weight")->type == StoredType::kI8);
  CHECK(files.Find("decoder.cross_kv.weight")->shape == std::vector<int64_t>{2 * 2 * 64, 64});
  CHECK(files.Find("encoder.layers.1.qkv.weight")->shape == std::vector<int64_t>{3 * 64, 64});
  CHECK(files.Find("encoder.layers.1.qkv.scales")->shape == std::vector<int64_t>{3 * 64});
}

TEST_CASE("bf16 and f16 round the matrices only") {
  for (const auto& [type, bits] : {std::pair(DType::kBF16, 8), std::pair(DType::kF16, 11)}) {
    ScratchDirectory scratch;
    MustConvert(Packed(GoldenDirectory("t5-v1_0"), scratch / "out", type));
    const Loaded source = MustLoad(GoldenDirectory("t5-v1_0"), WeightType::kF32);
    const Loaded result = MustLoad(scratch / "out", WeightType::kF32);
    const LinearWeight &a = source.weights.cross_kv, &b = result.weights.cross_kv;
    std::vector<float> x(a.n() * a.k()), y(x.size());
    a.Unpack(0, Tensor::F32(x.data(), {a.n(), a.k()}));
    b.Unpack(0, Tensor::F32(y.data(), {b.n(), b.k()}));
    bool rounded = false;
    for (size_t i = 0; i < x.size(); ++i) {
      REQUIRE(std::abs(x[i] - y[i]) <= std::ldexp(std::abs(x[i]), -bits) + 1e-7f);
      rounded |= x[i] != y[i];
    }
    CHECK(rounded);
    CHECK(std::memcmp(source.weights.encoder.final_norm.data,
                      result.weights.encoder.final_norm.data, 64 * sizeof(float)) == 0);
  }
}

TEST_CASE("Conversion writes the same bytes in every run, from one file or from shards") {
  for (ConvertForm form : {ConvertForm::kPacked, ConvertForm::kFat5}) {
    ScratchDirectory scratch;
    const std::string source = CopyCase("t5-v1_1", scratch);
    WriteText(source + "/spiece.model", "pieces");
    WriteText(source + "/generation_config.json", "{\"num_beams\": 4}");
    WriteText(source + "/MODEL-LICENSE", "free");
    WriteText(source + "/optimizer.pt", "large");
    const ConvertResult first = MustConvert(Renamed(source, scratch / "a", form));
    const ConvertResult second = MustConvert(Renamed(source, scratch / "b", form));
    Rewrite(source, 3);
    MustConvert(Renamed(source, scratch / "c", form));
    for (const char* file : {"model.safetensors", "config.json", "spiece.model",
                             "generation_config.json", "MODEL-LICENSE"}) {
      INFO(file);
      const std::string sha = Sha256OfFile(scratch / "a/" + file);
      CHECK(sha == Sha256OfFile(scratch / "b/" + file));
      CHECK(sha == Sha256OfFile(scratch / "c/" + file));
    }
    CHECK_FALSE(fs::exists(scratch / "a/optimizer.pt"));
    CHECK(ReadText(scratch / "a/spiece.model") == "pieces");
    CHECK(first.weights_sha256 == second.weights_sha256);
    CHECK(first.weights_sha256 == Sha256OfFile(scratch / "a/model.safetensors"));
    if (form != ConvertForm::kPacked) continue;
    const auto config = nlohmann::json::parse(ReadText(scratch / "a/config.json"));
    CHECK(config["quintet"]["weights_sha256"] == first.weights_sha256);
    CHECK(config["feed_forward_proj"] == "gated-gelu");
  }
}

TEST_CASE("An existing directory is replaced only with force and only if it contains a model") {
  ScratchDirectory scratch;
  MustConvert(Packed(GoldenDirectory("t5-v1_1"), scratch / "out", DType::kF32));
  const std::string before = ReadText(scratch / "out/config.json");
  ConvertOptions options = Packed(GoldenDirectory("gpt2"), scratch / "out", DType::kBF16);
  CHECK(Failure(options).code() == absl::StatusCode::kAlreadyExists);
  CHECK(ReadText(scratch / "out/config.json") == before);
  options.replace = true;
  MustConvert(options);
  CHECK(MustLoad(scratch / "out", WeightType::kF32).config.family == Family::kGpt2);

  fs::create_directory(scratch / "home");
  WriteText(scratch / "home/letter.txt", "dear");
  options.target = scratch / "home";
  CHECK(Failure(options).code() == absl::StatusCode::kAborted);
  CHECK(ReadText(scratch / "home/letter.txt") == "dear");
  CHECK(scratch.Entries() == std::vector<std::string>{"home", "out"});
}

TEST_CASE("A model directory is never replaced by its own conversion, whatever the path") {
  ScratchDirectory scratch;
  const std::string source = CopyCase("t5-v1_1", scratch);
  fs::create_directory_symlink(source, scratch / "link");
  const std::string before = Sha256OfFile(source + "/config.json");
  for (const std::string& target :
       {source, source + "/", source + "//.", source + "/../source", scratch / "link",
        (scratch / "link") + "/", (scratch / "link") + "/../source"}) {
    for (const bool replace : {false, true}) {
      ConvertOptions options = Packed(source, target, DType::kF32);
      options.replace = replace;
      const absl::Status status = Failure(options);
      INFO(status);
      CHECK(status.code() == absl::StatusCode::kInvalidArgument);
      CHECK(std::string(status.message()).find("is the model itself") != std::string::npos);
    }
  }
  ConvertOptions from_link = Packed(scratch / "link", source, DType::kF32);
  from_link.replace = true;
  CHECK(Failure(from_link).code() == absl::StatusCode::kInvalidArgument);
  CHECK(Sha256OfFile(source + "/config.json") == before);
  CHECK(scratch.Entries() == std::vector<std::string>{"link", "source"});
}

TEST_CASE("Target names are accepted up to the length that the file system supports") {
  ScratchDirectory scratch;
  const std::string source = GoldenDirectory("t5-v1_1");
  const int64_t longest = NAME_MAX - kTemporaryNameBytes;
  MustConvert(Packed(source, scratch / std::string(longest, 'n'), DType::kF32));
  for (const std::string& target :
       {std::string(), std::string("/"), std::string("."), scratch / std::string(longest + 1, 'n'),
        scratch / std::string(300, 'n'), (scratch / std::string(300, 'n')) + "/out"}) {
    const absl::Status status = CheckConvertTarget(source, target);
    INFO(target << ": " << status);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  }
  std::string deep = scratch / "";
  while (deep.size() < PATH_MAX) deep += "directory/";
  CHECK(CheckConvertTarget(source, deep + "out").code() == absl::StatusCode::kInvalidArgument);
  CHECK(scratch.Entries().size() == 1);
}

TEST_CASE("Source and target inside each other are rejected") {
  ScratchDirectory scratch;
  const std::string source = CopyCase("t5-v1_1", scratch);
  CHECK(Failure(Packed(source, source + "/out", DType::kF32)).code() ==
        absl::StatusCode::kInvalidArgument);
  ConvertOptions options = Packed(source, source + "/..", DType::kF32);
  options.replace = true;
  CHECK(Failure(options).code() == absl::StatusCode::kInvalidArgument);
  CHECK(fs::exists(source + "/config.json"));
}

TEST_CASE("Symbolic links are followed only on request") {
  for (const char* file : {"config.json", "model.safetensors", "spiece.model"}) {
    ScratchDirectory scratch;
    const std::string source = CopyCase("t5-v1_1", scratch);
    WriteText(source + "/spiece.model", "pieces");
    fs::rename(source + "/" + file, scratch / "blob");
    fs::create_symlink(scratch / "blob", source + "/" + file);
    ConvertOptions options = Packed(source, scratch / "out", DType::kF32);
    INFO(file);
    const absl::Status refused = Failure(options);
    CHECK_FALSE(refused.ok());
    CHECK(std::string(refused.message()).find("symbolic link") != std::string::npos);
    CHECK(scratch.Entries() == std::vector<std::string>{"blob", "source"});
    options.follow_symlinks = true;
    MustConvert(options);
    CHECK(ReadText(scratch / "out/spiece.model") == "pieces");
    CHECK_FALSE(fs::is_symlink(scratch / "out" + std::string("/") + file));
  }
}

// Sets one value of one F32 tensor.
void Poison(const std::string& directory, const std::string& name, float value) {
  Rewrite(directory, 1, [&](const StoredTensor& tensor, std::vector<char>* bytes) {
    if (tensor.name == name) std::memcpy(bytes->data() + 40, &value, sizeof(value));
  });
}

TEST_CASE("Values that the output type cannot represent are errors, and no file remains") {
  const std::string tensor = "encoder.block.1.layer.1.DenseReluDense.wo.weight";
  for (float value : {70000.0f, NAN}) {
    for (ConvertForm form : {ConvertForm::kPacked, ConvertForm::kFat5}) {
      ScratchDirectory scratch;
      const std::string source = CopyCase("t5-v1_0", scratch);
      Poison(source, tensor, value);
      ConvertOptions options = Renamed(source, scratch / "out", form);
      options.dtype = DType::kF16;
      CHECK(Failure(options).code() == absl::StatusCode::kInvalidArgument);
      CHECK(scratch.Entries() == std::vector<std::string>{"source"});
      options.dtype = DType::kF32;
      CHECK(Convert(options).ok() == !std::isnan(value));
    }
  }
}

TEST_CASE("A rejected or cancelled conversion leaves no file") {
  ScratchDirectory scratch;
  ConvertOptions options = Packed(GoldenDirectory("t5-v1_1"), scratch / "out", DType::kF32);
  options.accept = [&](const std::string& directory, const ConvertResult&) {
    CHECK(fs::exists(directory + "/config.json"));
    CHECK_FALSE(fs::exists(scratch / "out"));
    return absl::AbortedError("no");
  };
  CHECK(Failure(options).code() == absl::StatusCode::kAborted);
  CHECK(scratch.Entries().empty());
  options.accept = nullptr;
  options.progress = [](int64_t done, int64_t total) { return done < total / 2; };
  CHECK(Failure(options).code() == absl::StatusCode::kCancelled);
  CHECK(scratch.Entries().empty());
}

TEST_CASE("A full disk is a clear error, and no file remains") {
  ScratchDirectory scratch;
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {200000, 200000};  // larger files fail as on a full disk
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
    const absl::Status status =
        Failure(Packed(GoldenDirectory("t5-v1_1"), scratch / "out", DType::kF32));
    _exit(status.code() == absl::StatusCode::kResourceExhausted ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(scratch.Entries().empty());
}

// ---- Conversion from T5 to FAT5 and back ----

TEST_CASE("T5 converted to FAT5 and back has identical tensors") {
  for (const char* name : {"t5-v1_0", "t5-v1_1", "mt5", "t5-encoder", "t5-tokcls"}) {
    ScratchDirectory scratch;
    INFO(name);
    MustConvert(Renamed(GoldenDirectory(name), scratch / "fat5", ConvertForm::kFat5));
    const Loaded fat5 = MustLoad(scratch / "fat5", WeightType::kF32);
    CHECK(fat5.config.family == Family::kFat5);
    CHECK(fat5.config.attention_scale == 1.0f);
    MustConvert(Renamed(scratch / "fat5", scratch / "t5", ConvertForm::kT5));
    const Loaded source = MustLoad(GoldenDirectory(name), WeightType::kF32);
    const Loaded back = MustLoad(scratch / "t5", WeightType::kF32);
    CHECK(DifferenceOfWeights(source.weights, back.weights) == "");
    CHECK(source.weights.logit_scale == back.weights.logit_scale);
    CHECK(source.config.gated == back.config.gated);
    CHECK(source.config.activation == back.config.activation);
    CHECK(source.config.head == back.config.head);
    CHECK(source.config.eos_ids == back.config.eos_ids);
  }
}

TEST_CASE("FAT5 converted to T5 and back has identical tensors, also without 'act.' in names") {
  for (const char* name : {"fat5-t5", "fat5-t5-shared-only", "fat5-tokcls"}) {
    ScratchDirectory scratch;
    INFO(name);
    MustConvert(Renamed(GoldenDirectory(name), scratch / "t5", ConvertForm::kT5));
    CHECK(MustLoad(scratch / "t5", WeightType::kF32).config.family == Family::kT5);
    MustConvert(Renamed(scratch / "t5", scratch / "fat5", ConvertForm::kFat5));
    CHECK(DifferenceOfWeights(MustLoad(GoldenDirectory(name), WeightType::kF32).weights,
                              MustLoad(scratch / "fat5", WeightType::kF32).weights) == "");
  }
}

TEST_CASE("The scale of tied logits moves into FAT5's head if that is exact") {
  ScratchDirectory scratch;  // 64^-0.5 = 1/8
  MustConvert(Renamed(GoldenDirectory("t5-v1_0"), scratch / "fat5", ConvertForm::kFat5));
  const SafetensorsReader files = *SafetensorsReader::Open(scratch / "fat5");
  std::vector<float> table(192 * 64), head(table.size());
  REQUIRE(files.Read(*files.Find("shared.weight"), 0, table.size() * 4, table.data()).ok());
  REQUIRE(files.Read(*files.Find("lm_head.weight"), 0, head.size() * 4, head.data()).ok());
  for (size_t i = 0; i < table.size(); ++i) REQUIRE(head[i] == table[i] * 0.125f);
  CHECK_FALSE(MustLoad(scratch / "fat5", WeightType::kF32).config.scale_logits.value());
}

TEST_CASE("A scale that is not exact makes the head f32, and converting back gives a tied model") {
  ScratchDirectory scratch;  // t5-v1_1 is bf16 with d_model 128; the head is tied below
  const std::string source = CopyCase("t5-v1_1", scratch);
  EditConfig(source, [](nlohmann::json* config) {
    (*config)["tie_word_embeddings"] = true;
    (*config)["scale_decoder_outputs"] = true;
  });
  std::vector<char> table;
  Rewrite(source, 1, [&](const StoredTensor& tensor, std::vector<char>* bytes) {
    if (tensor.name == "shared.weight") table = *bytes;
  });
  Rewrite(source, 1, [&](const StoredTensor& tensor, std::vector<char>* bytes) {
    if (tensor.name == "lm_head.weight") *bytes = table;
  });
  MustConvert(Renamed(source, scratch / "fat5", ConvertForm::kFat5));
  CHECK(SafetensorsReader::Open(scratch / "fat5")->Find("lm_head.weight")->type ==
        StoredType::kF32);
  MustConvert(Renamed(scratch / "fat5", scratch / "t5", ConvertForm::kT5));
  CHECK(SafetensorsReader::Open(scratch / "t5")->Find("lm_head.weight") == nullptr);
  CHECK(MustLoad(scratch / "t5", WeightType::kF32).config.scale_logits.value());
}

TEST_CASE("FAT5's attention scale moves into T5's query weights") {
  ScratchDirectory scratch;  // attention_scale null: 1 / sqrt(4 heads)
  MustConvert(Renamed(GoldenDirectory("fat5-scale-null"), scratch / "t5", ConvertForm::kT5));
  const Loaded fat5 = MustLoad(GoldenDirectory("fat5-scale-null"), WeightType::kF32);
  const Loaded t5 = MustLoad(scratch / "t5", WeightType::kF32);
  CHECK(fat5.config.attention_scale == 0.5f);
  const LinearWeight &a = fat5.weights.decoder.layers[1].cross_q,
                     &b = t5.weights.decoder.layers[1].cross_q;
  std::vector<float> x(a.n() * a.k()), y(x.size());
  a.Unpack(0, Tensor::F32(x.data(), {a.n(), a.k()}));
  b.Unpack(0, Tensor::F32(y.data(), {b.n(), b.k()}));
  for (size_t i = 0; i < x.size(); ++i) REQUIRE(y[i] == 0.5f * x[i]);
}

TEST_CASE("Features that the other family lacks are rejected before any file is written") {
  ScratchDirectory scratch;
  for (const char* name :
       {"umt5", "t5-long", "t5-seqcls", "t5-qa", "gpt2", "fat5-t5", "longt5-local"}) {
    INFO(name);
    CHECK(Failure(Renamed(GoldenDirectory(name), scratch / "out", ConvertForm::kFat5)).code() ==
          absl::StatusCode::kUnimplemented);
  }
  for (const char* name : {"fat5-alibi", "fat5-rope", "fat5-fire-32", "fat5-nope", "fat5-seqcls",
                           "fat5-qa", "t5-v1_1", "longt5-tglobal"}) {
    INFO(name);
    CHECK(Failure(Renamed(GoldenDirectory(name), scratch / "out", ConvertForm::kT5)).code() ==
          absl::StatusCode::kUnimplemented);
  }
  MustConvert(Packed(GoldenDirectory("t5-v1_1"), scratch / "packed", DType::kF32));
  CHECK(Failure(Renamed(scratch / "packed", scratch / "out", ConvertForm::kFat5)).code() ==
        absl::StatusCode::kFailedPrecondition);
  ConvertOptions int8 = Renamed(GoldenDirectory("t5-v1_1"), scratch / "out", ConvertForm::kFat5);
  int8.dtype = DType::kI8;
  CHECK(Failure(int8).code() == absl::StatusCode::kInvalidArgument);
  CHECK(scratch.Entries() == std::vector<std::string>{"packed"});
}

// ---- Processes killed during a conversion ----

TEST_CASE("A conversion killed at 100 random moments leaves the old model and no partial files") {
  std::mt19937 random(11);
  ScratchDirectory scratch;
  const auto convert = [&](const std::string& name) {
    ConvertOptions options = Packed(GoldenDirectory(name), scratch / "out", DType::kI8);
    options.replace = true;
    return Convert(options).ok();
  };
  REQUIRE(convert("t5-encoder"));
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE((convert("fat5-encoder") && convert("t5-encoder")));
  const auto pair_us = std::chrono::duration_cast<std::chrono::microseconds>(
                           std::chrono::steady_clock::now() - begin)
                           .count();
  int killed = 0, seen[2] = {0, 0};
  for (int round = 0; round < 100; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      for (;;) {
        if (!convert("t5-encoder") || !convert("fat5-encoder")) _exit(1);
      }
    }
    usleep(random() % (2 * pair_us));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    killed += WIFSIGNALED(status);
    const Loaded model = MustLoad(scratch / "out", WeightType::kI8);
    ++seen[model.config.family == Family::kFat5];
  }
  CHECK(killed == 100);
  CHECK(seen[0] > 0);
  CHECK(seen[1] > 0);
  REQUIRE(convert("t5-encoder"));
  CHECK(scratch.Entries() == std::vector<std::string>{"out"});
}

}  // namespace
}  // namespace quintet
