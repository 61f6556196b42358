// Checks of InferTask that hold for every request. InferTask must return an error that a client may
// see, or requests that the engine can run and, from any results, a response whose tensors are
// consistent. Aborts if a check fails. Used by a unit test with random requests and by a fuzzer.
#pragma once

#include "inference/grpc_inference.pb.h"
#include "server/model_host.h"

namespace quintet {

// Result of the check: the status of the translation, and the number of engine requests.
struct CheckedInfer {
  absl::Status status;
  size_t requests = 0;
};
CheckedInfer CheckInfer(const ::inference::ModelInferRequest& request, bool streams,
                        const ModelHost& host);

}  // namespace quintet
