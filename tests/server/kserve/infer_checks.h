// Checks InferTask with any request. It must return an error that is fit for clients, or requests
// that the engine can run; from results of these requests it must make a response whose tensors are
// consistent. Aborts if a check fails. Used by a unit test with random requests and by a fuzzer.
#pragma once

#include "inference/grpc_inference.pb.h"
#include "server/model_host.h"

namespace quintet {

// The outcome of InferTask: its status (OK or an error), and the number of engine requests.
struct CheckedInfer {
  absl::Status status;
  size_t requests = 0;
};
CheckedInfer CheckInfer(const ::inference::ModelInferRequest& request, bool streams,
                        const ModelHost& host);

}  // namespace quintet
