#include "engine/memory_plan.h"

#include "engine/engine.h"
#include "tests/catch.h"

namespace quintet {
namespace {

constexpr char kModel[] = QUINTET_SOURCE_DIR "/deploy/models/g2p";

TEST_CASE("the KV cache gets the memory that the bounds leave") {
  ThreadPool pool(1);
  LoadOptions options;
  options.limits.page_size = 16;
  const int64_t asked = int64_t{64} << 20;
  REQUIRE(PlanMemory(kModel, {.cache_bytes = asked}, &options, &pool).ok());
  const MemoryPlan free = *MeasureMemory(kModel, options, &pool);
  const int64_t page_bytes = free.model.cache / free.pages;
  CHECK(free.model.cache <= asked);
  CHECK(free.model.cache > asked - page_bytes);

  const int64_t fixed = free.total() - free.model.cache;
  for (const int64_t pages : {int64_t{1}, int64_t{7}, free.pages, free.pages + 100}) {
    for (const int64_t more : {int64_t{0}, page_bytes - 1}) {
      const int64_t most = fixed + pages * page_bytes + more;
      REQUIRE(PlanMemory(kModel, {.cache_bytes = asked, .max_bytes = most}, &options, &pool).ok());
      CHECK(options.limits.cache_pages == std::min(pages, free.pages));
      CHECK(MeasureMemory(kModel, options, &pool)->total() <= most);
    }
  }
  const absl::Status refused = PlanMemory(
      kModel, {.cache_bytes = asked, .max_bytes = fixed + page_bytes - 1}, &options, &pool);
  CHECK(absl::IsResourceExhausted(refused));
  INFO(refused);
  CHECK(refused.message().find("--max-memory") != std::string::npos);
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
  // The workspace for longer inputs belongs to the encoder only.
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
