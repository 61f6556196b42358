// Compares embeddings pooled on a GPU with those that the host pools from the same hidden states.
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "engine/pooling.h"
#include "tests/catch.h"
#include "tests/engine/async_scheduling.h"
#include "tests/open_gpu.h"

namespace quintet {
namespace {

// Returns encode requests with every kind of pooling, for inputs of 1 to 40 tokens, some with a
// prompt. Some requests use `modules`, which has four poolings: more than a short input has tokens.
std::vector<Request> RandomEmbeddings(const ModelConfig& config, const SentenceModules* modules,
                                      int count) {
  constexpr Pooling kKinds[] = {Pooling::kMean,    Pooling::kFirst,       Pooling::kLast,
                                Pooling::kMax,     Pooling::kMeanSqrtLen, Pooling::kWeightedMean,
                                Pooling::kModules, Pooling::kNone};
  std::mt19937 random(5);
  std::vector<Request> requests(static_cast<size_t>(count));
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.kind = RequestKind::kEncode;
    request.pooling = kKinds[i % std::size(kKinds)];
    request.normalize = random() % 3 == 0;
    if (request.pooling == Pooling::kModules && i % 3 != 0) request.modules = modules;
    for (uint32_t n = 1 + random() % 40; n > 0; --n) {
      request.input.push_back(static_cast<int32_t>(2 + random() % (config.vocab - 2)));
    }
    if (random() % 4 == 0) request.prompt_tokens = static_cast<int64_t>(random() % 5);
  }
  return requests;
}

TEST_CASE("a GPU pools embeddings as the host does, to the bit, in batches of many kinds") {
  const std::unique_ptr<Device> device = OpenGpuOrSkip();
  if (device == nullptr) return;
  constexpr int kRequests = 200;
  ThreadPool pool(2);
  SentenceModules modules;
  modules.poolings = {Pooling::kFirst, Pooling::kMax, Pooling::kMean, Pooling::kLast};
  for (const char* folder : {"/deploy/models/g2p", "/tests/golden/cases/gpt2"}) {
    const std::unique_ptr<Model> model = LoadChoosing(folder, device.get(), &pool);
    modules.columns = 4 * model->config().d_model;
    const std::vector<Request> requests = RandomEmbeddings(model->config(), &modules, kRequests);
    std::vector<Request> states = requests;
    for (Request& request : states) {
      request.pooling = Pooling::kNone;
      request.normalize = false;
      request.modules = nullptr;
    }
    const std::vector<Result> rows = ChooseTogether(model.get(), states, true);
    const std::vector<Result> pooled = ChooseTogether(model.get(), requests, true);
    for (size_t i = 0; i < requests.size(); ++i) {
      const int64_t width = rows[i].columns;
      const RowRange read = PooledRows(requests[i], rows[i].rows);
      const auto values = std::span(rows[i].values)
                              .subspan(static_cast<size_t>(read.begin * width),
                                       static_cast<size_t>((read.end - read.begin) * width));
      Result expected;
      PoolStates(requests[i], {values, width}, &expected);
      INFO(folder << " request " << i << ": " << requests[i].input.size() << " tokens");
      CHECK(pooled[i].columns == expected.columns);
      CHECK(pooled[i].values == expected.values);
    }
  }
}

}  // namespace
}  // namespace quintet
