// Tests requests of several priorities on a GPU with async scheduling and captured graphs: a
// request that is skipped in some steps must get the same tokens as when it runs alone.
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "engine/engine.h"
#include "tests/catch.h"
#include "tests/engine/async_scheduling.h"
#include "tests/models/must_load.h"
#include "tests/open_gpu.h"

namespace quintet {
namespace {

constexpr char kModel[] = QUINTET_SOURCE_DIR "/deploy/models/g2p";

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

TEST_CASE("on a GPU a request of any priority gets the result that it gets alone") {
  const std::unique_ptr<Device> device = OpenGpuOrSkip();
  if (device == nullptr) return;
  ThreadPool pool(1);
  LoadOptions options;
  options.device = device.get();
  options.weights = WeightType::kF32;
  options.limits.max_step_sequences = 32;
  options.limits.cache_pages = 2048;
  const std::unique_ptr<Model> model = MustLoad(kModel, &pool, options);
  const std::vector<Request> requests = RandomRequests(60, model->config());
  const std::vector<Result> together = Choose(model.get(), requests, true);
  for (size_t i = 0; i < requests.size(); ++i) {
    INFO("request " << i);
    const Result alone = Choose(model.get(), {requests[i]}, true)[0];
    CHECK(ChoseAlike(together[i], alone, std::numeric_limits<float>::infinity()));
  }
}

}  // namespace
}  // namespace quintet
