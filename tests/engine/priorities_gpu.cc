// Tests requests of several priorities on a GPU with async scheduling and captured graphs: a
// request that is skipped in some steps must get the same tokens as when it runs alone.
#include <memory>
#include <random>
#include <vector>

#include "engine/engine.h"
#include "tests/catch.h"

namespace quintet {
namespace {

constexpr char kModel[] = QUINTET_SOURCE_DIR "/deploy/models/g2p";

struct TokensSink : ResponseSink {
  void OnDone(absl::StatusOr<Result> result) override {
    status = result.status();
    if (!result.ok()) return;
    for (const GeneratedSequence& s : result->sequences) sequences.push_back(s.token_ids);
  }
  absl::Status status = absl::UnknownError("not ended");
  std::vector<std::vector<int32_t>> sequences;
};

// Returns random requests that async scheduling supports: most are greedy, the others have 4 beams.
std::vector<Request> RandomRequests(int count, const ModelConfig& config) {
  std::mt19937 random(5);
  std::vector<Request> requests(count);
  for (Request& request : requests) {
    request.input.resize(2 + random() % 30);
    for (int32_t& token : request.input) {
      token = 3 + static_cast<int32_t>(random() % (config.vocab - 3));
    }
    request.decoding.prompt = {config.decoder_start_id};
    request.decoding.max_new_tokens = 5 + random() % 60;
    if (random() % 2 == 0) request.decoding.eos_token_ids = config.eos_ids;
    if (random() % 6 == 0) request.decoding.num_beams = 4;
    if (random() % 6 == 1) request.decoding.min_new_tokens = 4;
    request.priority = static_cast<Priority>(random() % 3);
  }
  return requests;
}

// Runs the requests in a new engine and returns their tokens. Submits them one by one, a request
// before every second step.
std::vector<std::vector<std::vector<int32_t>>> Serve(Model* model, std::vector<Request> requests) {
  auto engine = Engine::Create(model, nullptr, EngineLimits());
  REQUIRE(engine.ok());
  std::vector<std::shared_ptr<TokensSink>> sinks;
  bool more = true;
  for (size_t step = 0; more || sinks.size() < requests.size(); ++step) {
    REQUIRE(step < 10000);
    if (step % 2 == 0 && sinks.size() < requests.size()) {
      sinks.push_back(std::make_shared<TokensSink>());
      Request& request = requests[sinks.size() - 1];
      request.sink = sinks.back();
      REQUIRE((*engine)->Submit(request).ok());
    }
    more = (*engine)->Step();
  }
  std::vector<std::vector<std::vector<int32_t>>> tokens;
  for (const auto& sink : sinks) {
    INFO(sink->status);
    REQUIRE(sink->status.ok());
    tokens.push_back(sink->sequences);
  }
  return tokens;
}

TEST_CASE("on a GPU a request of any priority gets the result that it gets alone") {
  auto device = Device::Open(0);
  if (!device.ok()) {
    WARN("skipped: " << device.status().message());
    return;
  }
  ThreadPool pool(1);
  LoadOptions options;
  options.device = device->get();
  options.weights = WeightType::kF32;
  options.limits.max_step_sequences = 32;
  options.limits.cache_pages = 2048;
  auto model = Model::Load(kModel, options, &pool);
  INFO(model.status());
  REQUIRE(model.ok());
  const std::vector<Request> requests = RandomRequests(60, (*model)->config());
  const auto together = Serve(model->get(), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    INFO("request " << i);
    CHECK(together[i] == Serve(model->get(), {requests[i]})[0]);
  }
}

}  // namespace
}  // namespace quintet
