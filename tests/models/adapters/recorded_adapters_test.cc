// Adapters that PEFT wrote, merged into their base models, give the outputs that PEFT computed.
#include <filesystem>
#include <memory>
#include <string>

#include "models/adapters/adapter.h"
#include "models/convert/convert.h"
#include "models/model.h"
#include "models/verify_merge.h"
#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/models/adapters/recorded_adapter.h"
#include "tests/models/scratch_directory.h"

namespace quintet {
namespace {

Adapter MustRead(const std::string& path, const std::string& base) {
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(base);
  REQUIRE(config.ok());
  absl::StatusOr<Adapter> adapter = ReadAdapter(path, *config);
  INFO(path << ": " << adapter.status());
  REQUIRE(adapter.ok());
  return *std::move(adapter);
}

void MustMerge(const std::string& base, const Adapter& adapter, const std::string& target,
               DType dtype) {
  ConvertOptions options;
  options.source = base;
  options.target = target;
  options.dtype = dtype;
  options.adapter = &adapter;
  const absl::StatusOr<ConvertResult> result = Convert(options);
  INFO(base << ": " << result.status());
  REQUIRE(result.ok());
}

ForwardOutputs RunModel(const RecordedAdapter& record, const std::string& directory,
                        ThreadPool* pool) {
  const auto model = Model::Load(directory, {.limits = RecordedLimits()}, pool);
  INFO(directory << ": " << model.status());
  REQUIRE(model.ok());
  return RunRecorded(record, model->get());
}

double WorstOf(const std::vector<StageError>& errors) {
  double worst = 0.0;
  for (const StageError& e : errors) worst = std::max(worst, e.error);
  return worst;
}

TEST_CASE("All kinds of adapters are recorded") {
  CHECK(RecordedAdapterNames() == std::vector<std::string>{"flan-all", "gpt2-conv", "kohya",
                                                           "t5-layers", "t5-qv", "t5-seqcls",
                                                           "t5-tokcls", "umt5-regex"});
}

TEST_CASE("A merged adapter gives PEFT's outputs") {
  ThreadPool pool(2);
  for (const std::string& name : RecordedAdapterNames()) {
    INFO(name);
    const RecordedAdapter record(name);
    const Adapter adapter = MustRead(record.path, record.base);
    ScratchDirectory scratch;
    MustMerge(record.base, adapter, scratch / "merged", DType::kF32);
    const ForwardOutputs merged = RunModel(record, scratch / "merged", &pool);
    CHECK(RelativeDifference(merged.logits, record.logits) < 1e-4);
    if (!record.states.empty()) {
      CHECK(RelativeDifference(merged.states, record.states) < 1e-4);
    }
    // Without the adapter the outputs differ; hence the checks above fail if it is not merged.
    const ForwardOutputs plain = RunModel(record, record.base, &pool);
    CHECK(RelativeDifference(plain.logits, record.logits) > 0.03);
  }
}

TEST_CASE("The check of a merge passes for the merged model and fails for others") {
  for (const std::string& name : RecordedAdapterNames()) {
    INFO(name);
    const RecordedAdapter record(name);
    const Adapter adapter = MustRead(record.path, record.base);
    ScratchDirectory scratch;
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
      const std::string target = scratch / std::to_string(static_cast<int>(dtype));
      MustMerge(record.base, adapter, target, dtype);
      const auto errors = CompareMerged(record.base, adapter, target, false);
      REQUIRE(errors.ok());
      CHECK(!errors->empty());
      CHECK(WorstOf(*errors) < VerifyTolerance(dtype));
    }
    const auto unmerged = CompareMerged(record.base, adapter, record.base, false);
    REQUIRE(unmerged.ok());
    CHECK(WorstOf(*unmerged) > 0.02);
  }
}

TEST_CASE("An adapter with FAT5's names gives what T5's names give in the converted model") {
  const RecordedAdapter record("t5-qv");
  ScratchDirectory scratch;
  const std::string fat5 = scratch / "fat5";
  ConvertOptions options;
  options.source = record.base;
  options.target = fat5;
  options.form = ConvertForm::kFat5;
  REQUIRE(Convert(options).ok());
  TestTensors renamed;
  for (auto& [name, tensor] : ReadTensorFile(record.path + "/adapter_model.safetensors")) {
    std::string to = name;
    const std::pair<const char*, const char*> parts[] = {
        {"layer.0.SelfAttention.q", "self_attention_layer.self_attention.Wq"},
        {"layer.0.SelfAttention.v", "self_attention_layer.self_attention.Wv"},
        {"layer.1.EncDecAttention.q", "cross_attention_layer.cross_attention.Wq"},
        {"layer.1.EncDecAttention.v", "cross_attention_layer.cross_attention.Wv"}};
    for (const auto& [from, with] : parts) {
      if (const size_t at = to.find(from); at != to.npos) {
        to.replace(at, std::string(from).size(), with);
      }
    }
    CHECK(to != name);
    renamed[to] = tensor;
  }
  const std::string directory = scratch / "adapter";
  std::filesystem::create_directory(directory);
  WriteTensors(directory, renamed, "adapter_model.safetensors");
  nlohmann::json config = nlohmann::json::parse(FileBytes(record.path + "/adapter_config.json"));
  config["target_modules"] = {"Wq", "Wv"};
  WriteBytes(directory + "/adapter_config.json", config.dump());
  MustMerge(fat5, MustRead(directory, fat5), scratch / "merged", DType::kF32);
  ThreadPool pool(2);
  const ForwardOutputs outputs = RunModel(record, scratch / "merged", &pool);
  CHECK(RelativeDifference(outputs.logits, record.logits) < 1e-4);
  CHECK(RelativeDifference(outputs.states, record.states) < 1e-4);
}

TEST_CASE("Adapters are merged into converted checkpoints, except quantised ones") {
  const RecordedAdapter record("t5-qv");
  ScratchDirectory scratch;
  ThreadPool pool(2);
  for (const DType dtype : {DType::kF32, DType::kI8}) {
    ConvertOptions options;
    options.source = record.base;
    options.target = scratch / std::to_string(static_cast<int>(dtype));
    options.dtype = dtype;
    REQUIRE(Convert(options).ok());
    const Adapter adapter = MustRead(record.path, options.target);
    ConvertOptions merge;
    merge.source = options.target;
    merge.target = options.target + "merged";
    merge.adapter = &adapter;
    const absl::Status status = Convert(merge).status();
    if (dtype == DType::kI8) {
      CHECK(absl::IsFailedPrecondition(status));
      continue;
    }
    REQUIRE(status.ok());
    CHECK(RelativeDifference(RunModel(record, merge.target, &pool).logits, record.logits) < 1e-4);
  }
}

}  // namespace
}  // namespace quintet
