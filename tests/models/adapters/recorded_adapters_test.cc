// Adapters that PEFT wrote must give the outputs that PEFT computed, both merged into their base
// models and unmerged.
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/adapter_pool.h"
#include "models/adapters/adapter.h"
#include "models/convert/convert.h"
#include "models/model.h"
#include "models/verify_merge.h"
#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/models/adapters/recorded_adapter.h"
#include "tests/models/must_load.h"
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
                                                           "longt5-some", "t5-layers", "t5-qv",
                                                           "t5-seqcls", "t5-tokcls", "umt5-regex"});
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
    // Merging while the base model is loaded gives the same weights.
    LoadOptions options = {.limits = RecordedLimits()};
    options.adapters = {{"a", record.path}};
    options.merge_adapter = true;
    const auto loaded = MustLoad(record.base, &pool, options);
    CHECK(loaded->adapters().empty());
    const ForwardOutputs outputs = RunRecorded(record, loaded.get());
    CHECK(outputs.logits == merged.logits);
    CHECK(outputs.states == merged.states);
    const absl::StatusOr<ModelMemory> measured = Model::Measure(record.base, options, &pool);
    REQUIRE(measured.ok());
    CHECK(measured->weights == loaded->memory().weights);
    CHECK(measured->adapters == 0);
    // Without the adapter the outputs differ; hence the checks above fail if it is not merged.
    const ForwardOutputs plain = RunModel(record, record.base, &pool);
    CHECK(RelativeDifference(plain.logits, record.logits) > 0.03);
  }
}

TEST_CASE("An adapter is not merged into quantised matrices") {
  ThreadPool pool(2);
  const RecordedAdapter record("flan-all");
  ScratchDirectory scratch;
  ConvertOptions convert;
  convert.source = record.base;
  convert.target = scratch / "int8";
  convert.dtype = DType::kI8;
  REQUIRE(Convert(convert).ok());
  LoadOptions options = {.weights = WeightType::kI8, .limits = RecordedLimits()};
  options.adapters = {{"a", record.path}};
  const auto expected = MustLoad(convert.target, &pool, options);
  options.merge_adapter = true;
  const auto model = MustLoad(convert.target, &pool, options);
  REQUIRE(model->adapters().size() == 1);
  const std::vector<int32_t> first(record.inputs.size(), 0);
  CHECK(RunRecorded(record, model.get(), first).logits ==
        RunRecorded(record, expected.get(), first).logits);
}

// Returns whether adapter `name` changes neither an LM head nor a classifier head. An adapter that
// changes a head must be merged.
bool RunsUnmerged(const std::string& name) {
  return name == "flan-all" || name == "kohya" || name == "longt5-some" || name == "t5-qv" ||
         name == "umt5-regex";
}

// Writes a copy of the adapter in `record` to `directory`, without factors for the LM head.
void WriteWithoutHead(const RecordedAdapter& record, const std::string& directory) {
  TestTensors kept = ReadTensorFile(record.path + "/adapter_model.safetensors");
  std::erase_if(kept, [](const auto& named) { return absl::StrContains(named.first, "lm_head"); });
  std::filesystem::create_directory(directory);
  WriteTensors(directory, kept, "adapter_model.safetensors");
  nlohmann::json config = nlohmann::json::parse(FileBytes(record.path + "/adapter_config.json"));
  nlohmann::json targets = nlohmann::json::array();
  for (const nlohmann::json& target : config["target_modules"]) {
    if (target != "lm_head") targets.push_back(target);
  }
  config["target_modules"] = targets;
  WriteBytes(directory + "/adapter_config.json", config.dump());
}

TEST_CASE("An adapter that is not merged gives what the merged one gives") {
  ThreadPool pool(2);
  for (const std::string name : {"gpt2-conv", "t5-layers"}) {
    INFO(name);
    const RecordedAdapter record(name);
    ScratchDirectory scratch;
    const std::string path = scratch / "adapter";
    WriteWithoutHead(record, path);
    MustMerge(record.base, MustRead(path, record.base), scratch / "merged", DType::kF32);
    const ForwardOutputs merged = RunModel(record, scratch / "merged", &pool);
    LoadOptions options = {.limits = RecordedLimits()};
    options.adapters = {{"a", path}};
    const auto model = Model::Load(record.base, options, &pool);
    INFO(model.status());
    REQUIRE(model.ok());
    const std::vector<int32_t> adapters(std::max(record.inputs.size(), record.targets.size()), 0);
    const ForwardOutputs outputs = RunRecorded(record, model->get(), adapters);
    CHECK(RelativeDifference(outputs.logits, merged.logits) < 1e-4);
    CHECK(RelativeDifference(RunRecorded(record, model->get()).logits, merged.logits) > 0.01);
  }
}

TEST_CASE("An adapter that is not merged gives PEFT's outputs, other rows those of the base") {
  ThreadPool pool(2);
  for (const std::string& name : RecordedAdapterNames()) {
    INFO(name);
    const RecordedAdapter record(name);
    LoadOptions options = {.limits = RecordedLimits()};
    options.adapters = {{"first", record.path}, {"second", record.path}};
    const auto model = Model::Load(record.base, options, &pool);
    if (!RunsUnmerged(name)) {
      CHECK(absl::IsUnimplemented(model.status()));
      CHECK(absl::StrContains(model.status().message(), "adapter first: "));
      CHECK(absl::StrContains(model.status().message(), "convert --adapter"));
      continue;
    }
    INFO(model.status());
    REQUIRE(model.ok());
    CHECK((*model)->adapters().size() == 2);
    const size_t rows = record.inputs.size();
    const ForwardOutputs base = RunRecorded(record, model->get());
    const ForwardOutputs adapted = RunRecorded(record, model->get(), std::vector<int32_t>(rows, 1));
    CHECK(RelativeDifference(adapted.logits, record.logits) < 1e-4);
    if (!record.states.empty()) CHECK(RelativeDifference(adapted.states, record.states) < 1e-4);
    CHECK(base.logits == RunModel(record, record.base, &pool).logits);
    CHECK(RelativeDifference(base.logits, record.logits) > 0.03);
    // Each row of a mixed batch must have the same bits as in a batch in which all rows have the
    // adapter, or none has.
    std::vector<int32_t> mixed(rows);
    for (size_t r = 0; r < rows; ++r) mixed[r] = static_cast<int32_t>(r % 3) - 1;
    const ForwardOutputs both = RunRecorded(record, model->get(), mixed);
    const TokenRows& outputs = record.targets.empty() ? record.inputs : record.targets;
    const size_t width = base.logits.size() / static_cast<size_t>(TotalTokens(outputs));
    size_t at = 0;
    for (size_t r = 0; r < rows; ++r) {
      const ForwardOutputs& expected = mixed[r] < 0 ? base : adapted;
      for (const size_t end = at + outputs[r].size() * width; at < end; ++at) {
        REQUIRE(both.logits[at] == expected.logits[at]);
      }
    }
  }
}

TEST_CASE("An adapter that is not merged is as exact as the merged one, for each type of weights") {
  ThreadPool pool(2);
  for (const char* name : {"flan-all", "t5-qv"}) {
    const RecordedAdapter record(name);
    ScratchDirectory scratch;
    MustMerge(record.base, MustRead(record.path, record.base), scratch / "merged", DType::kF32);
    for (const WeightType type : {WeightType::kF32, WeightType::kI8, WeightType::kBF16}) {
      if (!WeightTypeSupported(type)) continue;
      INFO(name << " " << WeightTypeName(type));
      LoadOptions options = {.weights = type, .limits = RecordedLimits()};
      const auto merged = Model::Load(scratch / "merged", options, &pool);
      options.adapters = {{"a", record.path}};
      const auto model = Model::Load(record.base, options, &pool);
      REQUIRE((merged.ok() && model.ok()));
      const std::vector<int32_t> adapters(record.inputs.size(), 0);
      const ForwardOutputs outputs = RunRecorded(record, model->get(), adapters);
      const double error = RelativeDifference(outputs.states, record.states);
      const double of_merged =
          RelativeDifference(RunRecorded(record, merged->get()).states, record.states);
      CHECK(error < 2 * of_merged + 2e-5);
      const double of_base =
          RelativeDifference(RunRecorded(record, model->get()).states, record.states);
      CHECK(error < 0.5 * of_base);
      const auto planned = Model::Measure(record.base, options, &pool);
      REQUIRE(planned.ok());
      CHECK(planned->adapters > 0);
      CHECK(planned->adapters == (*model)->memory().adapters);
      CHECK(planned->workspace == (*model)->memory().workspace);
    }
  }
}

TEST_CASE("Adapters that cannot be loaded are refused with name, path and reason") {
  ThreadPool pool(1);
  const RecordedAdapter record("t5-qv");
  const auto refused = [&](const std::string& path) {
    LoadOptions options = {.limits = RecordedLimits()};
    options.adapters = {{"good", record.path}, {"bad", path}};
    const absl::Status status = Model::Load(record.base, options, &pool).status();
    CHECK(absl::StrContains(status.message(), absl::StrCat("adapter bad: ", path, ": ")));
    return status;
  };
  ScratchDirectory scratch;
  CHECK(absl::IsNotFound(refused(scratch / "missing")));
  // A factor of f32 that the scale (here 2) makes infinite.
  TestTensors tensors = ReadTensorFile(record.path + "/adapter_model.safetensors");
  for (auto& [name, tensor] : tensors) {
    if (absl::StrContains(name, "lora_B")) tensor.values[0] = 3e38f;
  }
  const std::string large = scratch / "large";
  std::filesystem::create_directory(large);
  WriteTensors(large, tensors, "adapter_model.safetensors");
  WriteBytes(large + "/adapter_config.json", FileBytes(record.path + "/adapter_config.json"));
  const absl::Status status = refused(large);
  CHECK(absl::IsInvalidArgument(status));
  CHECK(absl::StrContains(status.message(), "beyond the range of f32"));
}

TEST_CASE("Names of adapters are checked") {
  const auto status = [](const std::vector<AdapterSource>& sources) {
    return CheckAdapterNames(sources);
  };
  CHECK(status({{"a", "x"}, {"b", "x"}}).ok());
  CHECK(absl::StrContains(status({{"a", "x"}, {"a", "y"}}).message(), "a is given twice"));
  CHECK(absl::IsInvalidArgument(status({{"", "x"}})));
  CHECK(absl::IsInvalidArgument(status({{"a\n", "x"}})));
  CHECK(absl::IsInvalidArgument(status({{"\xff", "x"}})));
  CHECK(absl::StrContains(status({{"a:b", "x"}}).message(), "the name a:b contains ':'"));
  CHECK(absl::IsInvalidArgument(status({{std::string(kMaxAdapterNameBytes + 1, 'a'), "x"}})));
  CHECK(absl::IsInvalidArgument(status(std::vector<AdapterSource>(kMaxAdapters + 1))));
  const std::vector<AdapterSource> two = {{"a", "x"}, {"b", "y"}};
  CHECK(*FindAdapter(two, "b") == 1);
  CHECK(absl::IsNotFound(FindAdapter(two, "c").status()));
  CHECK(absl::StrContains(FindAdapter(two, "c").status().message(), "it has: a, b"));
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
