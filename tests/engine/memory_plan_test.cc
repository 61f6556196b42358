#include "engine/memory_plan.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine.h"
#include "engine/process_memory.h"
#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/models/scratch_directory.h"

namespace quintet {
namespace {

constexpr char kModel[] = QUINTET_SOURCE_DIR "/deploy/models/g2p";

TEST_CASE("the KV cache gets the memory that the bounds leave") {
  ThreadPool pool(1);
  LoadOptions options;
  options.limits.page_size = 16;
  const int64_t asked = int64_t{64} << 20;
  LimitRequest request{.max_running = 64, .max_batch_tokens = 1024, .cache_bytes = asked};
  request.max_input_tokens = 512;
  REQUIRE(PlanMemory(kModel, request, &options, &pool).ok());
  const MemoryPlan free = *MeasureMemory(kModel, options, &pool);
  const int64_t page_bytes = free.model.cache / free.pages;
  CHECK(free.model.cache <= asked);
  CHECK(free.model.cache > asked - page_bytes);

  const int64_t fixed = free.total() - free.model.cache;
  for (const int64_t pages : {int64_t{1}, int64_t{7}, free.pages, free.pages + 100}) {
    for (const int64_t more : {int64_t{0}, page_bytes - 1}) {
      const int64_t most = fixed + pages * page_bytes + more;
      request.max_bytes = most;
      REQUIRE(PlanMemory(kModel, request, &options, &pool).ok());
      CHECK(options.limits.cache_pages == std::min(pages, free.pages));
      CHECK(MeasureMemory(kModel, options, &pool)->total() <= most);
    }
  }
  options.limits.cache_pages = 1;
  request.max_bytes = MeasureMemory(kModel, options, &pool)->total() - 1;
  const absl::Status refused = PlanMemory(kModel, request, &options, &pool);
  CHECK(absl::IsResourceExhausted(refused));
  INFO(refused);
  CHECK(refused.message().find("--max-memory") != std::string::npos);
}

TEST_CASE("a cache of fp8 holds more pages in the same memory") {
  ThreadPool pool(1);
  const LimitRequest request{.cache_bytes = int64_t{64} << 20};
  const auto plan = [&](bool fp8) {
    LoadOptions options;
    options.fp8_cache = fp8;
    REQUIRE(PlanMemory(kModel, request, &options, &pool).ok());
    return options;
  };
  // Without a device the plan is for a CPU, whose cache has four bytes per value.
  const LoadOptions wide = plan(false), narrow = plan(true);
  CHECK(narrow.limits.cache_pages / 4 == wide.limits.cache_pages);
  const ModelConfig config = *ReadModelConfig(kModel);
  CHECK_THAT(DescribeLimits(request, narrow, config),
             Catch::Matchers::ContainsSubstring("cache-memory 64 MiB, cache-dtype fp8"));
  CHECK_THAT(DescribeLimits(request, wide, config),
             Catch::Matchers::EndsWith("cache-memory 64 MiB"));
  CHECK_THAT(std::string(MeasureMemory(kModel, narrow, &pool).status().message()),
             Catch::Matchers::StartsWith("--cache-dtype: fp8 needs a GPU"));
}

TEST_CASE("the plan counts the memory in which the factors of an adapter are read") {
  const std::string tests = QUINTET_SOURCE_DIR "/tests/", adapter = tests + "data/adapters/t5-qv";
  const std::string base = nlohmann::json::parse(std::ifstream(adapter + "/record.json"))["base"];
  ThreadPool pool(1);
  LoadOptions options;
  CHECK(MeasureMemory(tests + base, options, &pool)->model.adapter_reading == 0);
  options.adapters = {{"qv", adapter}};
  const absl::StatusOr<MemoryPlan> plan = MeasureMemory(tests + base, options, &pool);
  REQUIRE(plan.ok());
  // The file consists of 8 bytes with the length of the header, the header, and the factors in f32.
  std::ifstream file(adapter + "/adapter_model.safetensors", std::ios::binary | std::ios::ate);
  const int64_t file_bytes = file.tellg();
  uint64_t header_bytes = 0;
  file.seekg(0).read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
  CHECK(plan->model.adapter_reading == file_bytes - 8 - static_cast<int64_t>(header_bytes));
}

TEST_CASE("a server has slots for more adapters than it loads, a job has not") {
  const std::string tests = QUINTET_SOURCE_DIR "/tests/", adapter = tests + "data/adapters/t5-qv";
  const std::string base = nlohmann::json::parse(std::ifstream(adapter + "/record.json"))["base"];
  ThreadPool pool(1);
  const auto slots = [&](Workload workload, int64_t adapters, int64_t given) {
    LoadOptions options;
    options.adapter_slots = given;
    for (int64_t i = 0; i < adapters; ++i) options.adapters.push_back({std::to_string(i), adapter});
    REQUIRE(PlanMemory(tests + base, {.workload = workload}, &options, &pool).ok());
    return options.adapter_slots;
  };
  CHECK(slots(Workload::kServing, 0, 0) == 0);
  CHECK(slots(Workload::kServing, 2, 0) == 64);
  CHECK(slots(Workload::kServing, 70, 0) == 70);
  CHECK(slots(Workload::kServing, 70, 3) == 3);
  CHECK(slots(Workload::kJob, 2, 0) == 0);
}

TEST_CASE("a large adapter decides how much memory loading takes") {
  // The factors take 64 MiB: zeros, stored as a hole in the file. Without the adapter, loading
  // takes 40 MiB with one thread.
  constexpr int64_t kRank = 1024, kFactorBytes = kRank * 256 * 4;
  const ScratchDirectory directory;
  nlohmann::json header;
  int64_t bytes = 0;
  for (const std::string stack : {"encoder", "decoder"}) {
    for (int module = 0; module < 16; ++module) {
      const std::string name =
          absl::StrCat("base_model.model.", stack, ".block.", module / 4, ".layer.0.SelfAttention.",
                       std::string(1, "qkvo"[module % 4]));
      for (const bool a : {true, false}) {
        const auto shape =
            a ? std::array<int64_t, 2>{kRank, 256} : std::array<int64_t, 2>{256, kRank};
        header[name + (a ? ".lora_A.weight" : ".lora_B.weight")] = {
            {"dtype", "F32"}, {"shape", shape}, {"data_offsets", {bytes, bytes + kFactorBytes}}};
        bytes += kFactorBytes;
      }
    }
  }
  const std::vector<std::string> targets = {"SelfAttention.q", "SelfAttention.k", "SelfAttention.v",
                                            "SelfAttention.o"};
  const nlohmann::json config = {
      {"peft_type", "LORA"}, {"r", kRank}, {"lora_alpha", 8}, {"target_modules", targets}};
  WriteText(directory / "adapter_config.json", config.dump());
  const std::string text = header.dump(), weights = directory / "adapter_model.safetensors";
  const uint64_t length = text.size();
  WriteText(weights, std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text);
  std::filesystem::resize_file(weights, sizeof(length) + length + static_cast<uint64_t>(bytes));
  ThreadPool pool(1);
  LoadOptions options;
  CHECK(MeasureMemory(kModel, options, &pool)->host_loading < bytes);
  options.adapters = {{"large", directory / "."}};
  const absl::StatusOr<MemoryPlan> plan = MeasureMemory(kModel, options, &pool);
  INFO(plan.status());
  REQUIRE(plan.ok());
  CHECK(plan->host_loading == bytes);
}

TEST_CASE("limits that are not given are chosen for the workload and the machine") {
  ThreadPool pool(1);
  const ModelConfig config = *ReadModelConfig(kModel);
  const auto planned = [&](const LimitRequest& request) {
    LoadOptions options;
    REQUIRE(PlanMemory(kModel, request, &options, &pool).ok());
    return options;
  };
  const LoadOptions serving = planned({}), job = planned({.workload = Workload::kJob});
  CHECK(serving.limits.max_step_sequences == 256);
  CHECK(job.limits.max_step_sequences == 64);
  CHECK(serving.limits.max_encode_tokens == 4096);
  CHECK(serving.limits.max_step_tokens >= serving.limits.max_step_sequences);
  const int64_t page_bytes = CachePageBytes(config, serving.limits.page_size);
  const ProcessMemory memory = ReadProcessMemory();
  const int64_t quarter =
      std::min(memory.resident.limit.bytes, memory.address_space.limit.bytes) / 4;
  CHECK(job.limits.cache_pages == std::min(int64_t{1} << 30, quarter) / page_bytes);
  CHECK(planned({.models = 1000}).limits.cache_pages <= quarter / 1000 / page_bytes);
  CHECK(planned({.decodes = false}).limits.cache_pages == 1);

  const LimitRequest given{.max_running = 3,
                           .max_batch_tokens = 100,
                           .cache_bytes = 5 * page_bytes,
                           .max_input_tokens = 50};
  const LoadOptions exact = planned(given);
  CHECK(exact.limits.max_step_sequences == 3);
  CHECK(exact.limits.max_encode_tokens == 100);
  CHECK(exact.limits.cache_pages == 5);
  CHECK(planned({.max_batch_tokens = 100, .max_input_tokens = 5000}).limits.max_encode_tokens ==
        5000);
  CHECK(DescribeLimits(given, exact, config) ==
        "max-running 3, max-batch-tokens 100, cache-memory 0 MiB");
  const std::string automatic = DescribeLimits({}, serving, config);
  INFO(automatic);
  CHECK(automatic.find("max-running 256 (auto), max-batch-tokens 4096 (auto)") == 0);
}

TEST_CASE("automatic batch limits shrink until --max-memory has room, given ones do not") {
  ThreadPool pool(1);
  LoadOptions options;
  REQUIRE(PlanMemory(kModel, {}, &options, &pool).ok());
  options.limits.cache_pages = 1;
  const int64_t wanted = MeasureMemory(kModel, options, &pool)->total();
  LoadOptions small;
  const LimitRequest request{.max_bytes = wanted, .max_input_tokens = 256};
  REQUIRE(PlanMemory(kModel, request, &small, &pool).ok());
  CHECK(small.limits.max_encode_tokens < 4096);
  CHECK(small.limits.max_encode_tokens >= 256);
  CHECK(small.limits.max_step_sequences >= 64);
  CHECK(MeasureMemory(kModel, small, &pool)->total() <= wanted);
  LoadOptions kept;
  LimitRequest given = request;
  given.max_running = 256;
  given.max_batch_tokens = 4096;
  REQUIRE(PlanMemory(kModel, given, &kept, &pool).ok());
  CHECK(kept.limits.max_encode_tokens == 4096);
  CHECK(kept.limits.max_step_sequences == 256);
}

TEST_CASE("a KV cache of more slots than have numbers is an error in MiB") {
  ThreadPool pool(1);
  LoadOptions options;
  const int64_t page_bytes =
      CachePageBytes(*ReadModelConfig(kModel), options.limits.page_size, DType::kF32);
  const int64_t most = (int64_t{1} << 31) / options.limits.page_size * page_bytes;
  CHECK(PlanMemory(kModel, {.cache_bytes = most - page_bytes}, &options, &pool).ok());
  const absl::Status status = PlanMemory(kModel, {.cache_bytes = most}, &options, &pool);
  CHECK(absl::IsInvalidArgument(status));
  CHECK(status.message() == absl::StrCat("--cache-memory: ", most >> 20, " MiB is not in [1, ",
                                         (most - 1) >> 20, "], the range for this model"));
}

TEST_CASE("the token budget of a step is one per sequence, on a GPU plus a prefill budget") {
  ModelConfig causal, encoder;
  causal.decoder_layers = encoder.decoder_layers = encoder.encoder_layers = 2;
  const auto tokens = [](const ModelConfig& config, int64_t encoded, int64_t sequences, bool gpu) {
    return MaxStepTokens({.max_encode_tokens = encoded, .max_step_sequences = sequences}, config,
                         gpu);
  };
  const int64_t least = ModelLimits().max_step_tokens;
  for (const ModelConfig& config : {causal, encoder}) {
    CHECK(tokens(config, 65536, 64, false) == least);
    CHECK(tokens(config, 65536, 9000, false) == 9000);
    CHECK(tokens(config, 128, 64, true) == least);
    CHECK(tokens(config, 2048, 64, true) == 2048);
    CHECK(tokens(config, 2048, 9000, true) == 9000);
  }
  CHECK(tokens(causal, 65536, 64, true) == 65536);
  // In an encoder-decoder, more encoder tokens do not raise the token budget of a decoder step.
  CHECK(tokens(encoder, 65536, 64, true) == tokens(encoder, 32768, 64, true));
}

TEST_CASE("MeasureMemory predicts the memory that the loaded model and engine hold") {
  ThreadPool pool(1);
  LoadOptions options;
  options.limits.cache_pages = 9;
  const MemoryPlan plan = *MeasureMemory(kModel, options, &pool);
  const auto model = Model::Load(kModel, options, &pool);
  REQUIRE(model.ok());
  const ModelMemory& held = (*model)->memory();
  CHECK(plan.model.weights == held.weights);
  CHECK(plan.model.cache == held.cache);
  CHECK(plan.model.workspace == held.workspace);
  CHECK(plan.search > 0);
  CHECK(plan.total() == held.weights + held.cache + held.workspace + plan.search);
}

}  // namespace
}  // namespace quintet
