#include "tests/golden/engine_run.h"

#include <utility>
#include <vector>

namespace quintet {

absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(Model* model) {
  EngineLimits limits;
  limits.max_queue_requests = limits.max_queue_tokens = int64_t{1} << 40;
  limits.max_running_sequences = model->limits().max_step_sequences;
  return Engine::Create(model, nullptr, limits);
}

absl::StatusOr<std::vector<Result>> ServeAll(Model* model, std::vector<Request> requests) {
  absl::StatusOr<std::unique_ptr<Engine>> engine = MakeEngine(model);
  if (!engine.ok()) return engine.status();
  std::vector<std::shared_ptr<ResultCollector>> sinks;
  for (Request& request : requests) {
    sinks.push_back(std::make_shared<ResultCollector>());
    request.sink = sinks.back();
    absl::StatusOr<RequestId> id = (*engine)->Submit(std::move(request));
    if (!id.ok()) return id.status();
  }
  while ((*engine)->Step()) {
  }
  std::vector<Result> results;
  for (const auto& sink : sinks) {
    if (!sink->result().has_value())
      return absl::InternalError("the engine stopped before a request finished");
    if (!sink->result()->ok()) return sink->result()->status();
    results.push_back(**sink->result());
  }
  return results;
}

}  // namespace quintet
