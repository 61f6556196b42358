// An engine for golden tests that accepts all requests of a golden case together, and a sink that
// stores the result of a request.
#pragma once

#include <memory>
#include <optional>

#include "engine/engine.h"

namespace quintet {

class ResultCollector final : public ResponseSink {
 public:
  void OnDone(absl::StatusOr<Result> result) override { result_ = std::move(result); }
  const std::optional<absl::StatusOr<Result>>& result() const { return result_; }

 private:
  std::optional<absl::StatusOr<Result>> result_;
};

// An engine with an unlimited queue.
absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(Model* model);

// Submits the requests, runs the engine until all have finished and returns one result per request,
// in the order of `requests`. Returns the first error if there is one.
absl::StatusOr<std::vector<Result>> ServeAll(Model* model, std::vector<Request> requests);

}  // namespace quintet
