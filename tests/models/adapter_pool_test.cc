#include "models/adapter_pool.h"

#include <filesystem>

#include "absl/strings/match.h"
#include "models/adapter_layout.h"
#include "models/adapter_slots.h"
#include "tests/catch.h"
#include "tests/models/adapters/recorded_adapter.h"
#include "tests/models/scratch_directory.h"

namespace quintet {
namespace {

std::unique_ptr<Model> LoadWith(const RecordedAdapter& record,
                                const std::vector<AdapterSource>& adapters, int64_t slots,
                                ThreadPool* pool) {
  LoadOptions options = {.limits = RecordedLimits()};
  options.adapters = adapters;
  options.adapter_slots = slots;
  absl::StatusOr<std::unique_ptr<Model>> model = Model::Load(record.base, options, pool);
  INFO(model.status());
  REQUIRE(model.ok());
  return *std::move(model);
}

TEST_CASE("Adapters that take turns in a slot give what each gives alone", "[adapters]") {
  ThreadPool pool(2);
  const RecordedAdapter record("flan-all");
  ScratchDirectory scratch;
  WriteScaled(record, scratch / "half", 0.5f);
  WriteScaled(record, scratch / "negative", -1.0f);
  const std::vector<AdapterSource> sources = {
      {"a", record.path}, {"b", scratch / "half"}, {"c", scratch / "negative"}};
  const auto roomy = LoadWith(record, sources, 0, &pool);
  const auto model = LoadWith(record, {sources[0], sources[1]}, 1, &pool);
  absl::StatusOr<AdapterHandle> later = model->ReadAdapter(sources[2]);
  REQUIRE(later.ok());
  const std::vector<AdapterHandle> adapters = {model->adapters()[0], model->adapters()[1], *later};
  CHECK(((*later)->id != adapters[0]->id && (*later)->source == sources[2]));
  const size_t rows = record.inputs.size();
  for (const int32_t index : {0, 1, 2, 2, 0, 1}) {
    const std::vector<float> expected =
        RunRecorded(record, roomy.get(), std::vector<int32_t>(rows, index)).logits;
    const std::vector<AdapterHandle> all(rows, adapters[static_cast<size_t>(index)]);
    CHECK(RunRecordedWith(record, model.get(), all).logits == expected);
  }
  CHECK(model->adapter_slots()->fills() == 5);
}

TEST_CASE("A model has no room for adapters that are larger than those at load", "[adapters]") {
  ThreadPool pool(1);
  const RecordedAdapter small("t5-qv"), all("flan-all");
  ScratchDirectory scratch;
  WriteScaled(small, scratch / "same", 2.0f);
  const auto model = LoadWith(small, {{"a", small.path}}, 2, &pool);
  CHECK(model->ReadAdapter({"b", scratch / "same"}).ok());
  const absl::Status missing = model->ReadAdapter({"c", scratch / "none"}).status();
  CHECK(absl::IsNotFound(missing));
  CHECK(absl::StartsWith(missing.message(), "adapter c: "));
  // Twice the rank.
  nlohmann::json config = nlohmann::json::parse(FileBytes(small.path + "/adapter_config.json"));
  TestTensors tensors = ReadTensorFile(small.path + "/adapter_model.safetensors");
  const auto rank = config["r"].get<int64_t>();
  config["r"] = 2 * rank;
  for (auto& [name, tensor] : tensors) {
    tensor.shape[absl::StrContains(name, "lora_A") ? 0 : 1] = 2 * rank;
    tensor.values.resize(2 * tensor.values.size());
  }
  std::filesystem::create_directory(scratch / "larger");
  WriteTensors(scratch / "larger", tensors, "adapter_model.safetensors");
  WriteBytes(scratch / "larger/adapter_config.json", config.dump());
  const absl::Status larger = model->ReadAdapter({"d", scratch / "larger"}).status();
  CHECK(absl::IsFailedPrecondition(larger));
  CHECK(absl::StrContains(larger.message(), "larger than the adapters with which the model"));
  const auto without = LoadWith(small, {}, 0, &pool);
  CHECK(without->adapter_slots() == nullptr);
  CHECK(absl::IsFailedPrecondition(without->ReadAdapter({"a", small.path}).status()));
}

TEST_CASE("Slots need memory for addresses only on a CPU", "[adapters]") {
  ThreadPool pool(1);
  const RecordedAdapter record("t5-qv");
  LoadOptions options = {.limits = RecordedLimits()};
  options.adapters = {{"a", record.path}, {"b", record.path}};
  const auto bytes = [&](int64_t slots) {
    options.adapter_slots = slots;
    const absl::StatusOr<ModelMemory> memory = Model::Measure(record.base, options, &pool);
    REQUIRE(memory.ok());
    CHECK(memory->host_adapters == 0);
    CHECK(memory->adapter_reading > 0);
    return memory->adapters;
  };
  CHECK(bytes(0) == bytes(2));
  const auto row = AdapterLayout(*ReadModelConfig(record.base), DType::kF32, Backend::kCpu).stride *
                   int64_t{sizeof(LoraPart)};
  CHECK(bytes(10) - bytes(2) == 8 * row);
  const auto model = Model::Load(record.base, options, &pool);
  REQUIRE(model.ok());
  CHECK((*model)->memory().adapters == bytes(2));
  int64_t factors = 0;
  for (const AdapterHandle& adapter : (*model)->adapters()) factors += adapter->size.bytes;
  CHECK(bytes(2) > factors);
}

TEST_CASE("A model keeps no adapter that was taken from it", "[adapters]") {
  ThreadPool pool(1);
  const RecordedAdapter record("t5-qv");
  const auto model = LoadWith(record, {{"a", record.path}, {"b", record.path}}, 1, &pool);
  std::vector<AdapterHandle> taken = model->TakeAdapters();
  REQUIRE(taken.size() == 2);
  CHECK(model->adapters().empty());
  CHECK(model->TakeAdapters().empty());
  for (const AdapterHandle& adapter : taken) CHECK(adapter.use_count() == 1);
  AdapterSlots& slots = *model->adapter_slots();
  slots.Return(slots.Take(taken[0]));
  slots.Return(slots.Take(taken[1]));
  CHECK(taken[0].use_count() == 1);
  CHECK(taken[1].use_count() == 2);  // in the slot
}

TEST_CASE("A stamp changes with an adapter's files", "[adapters]") {
  const RecordedAdapter record("t5-qv");
  ScratchDirectory scratch;
  const std::string path = scratch / "adapter";
  CHECK(StampAdapter(path).empty());
  WriteScaled(record, path, 1.0f);
  const AdapterStamp stamp = StampAdapter(path);
  CHECK_FALSE(stamp.empty());
  CHECK(StampAdapter(path) == stamp);
  WriteScaled(record, scratch / "other", 2.0f);
  std::filesystem::rename(scratch / "other/adapter_model.safetensors",
                          path + "/adapter_model.safetensors");
  CHECK(StampAdapter(path) != stamp);
}

}  // namespace
}  // namespace quintet
