// The methods of quintet.v1.Inference.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/call.h"

namespace quintet {

struct Method {
  std::string path;  // "/quintet.v1.Inference/Generate"
  bool needs_key = true;
  bool long_lived = false;  // may be open without a request in progress
  std::function<std::shared_ptr<RpcHandler>(std::shared_ptr<Rpc>)> make;
};

// `context` outlives what the methods make.
std::vector<Method> InferenceMethods(CallContext* context);

}  // namespace quintet
