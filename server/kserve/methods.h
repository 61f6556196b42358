// The methods of inference.GRPCInferenceService: KServe v2 (Open Inference Protocol) and the parts
// of Triton's extension that server/KSERVE.md lists. Every call that uses a model is a Call
// (call.h), as in quintet.v1.
#pragma once

#include <functional>
#include <vector>

#include "server/call.h"
#include "server/methods.h"

namespace quintet {

inline constexpr char kKserveService[] = "inference.GRPCInferenceService";

struct KserveOptions {
  // Return what /healthz and /readyz report. Must be thread-safe and outlive the handlers.
  std::function<bool()> live, ready;
  // Whether the server has begun to drain.
  std::function<bool()> draining;
  std::string version;  // of the server
};

// Returns all methods. ServerLive, ServerReady and ModelReady need no API key. `context` must
// outlive the handlers.
std::vector<Method> KserveMethods(CallContext* context, const KserveOptions& options);

}  // namespace quintet
