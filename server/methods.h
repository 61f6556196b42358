// The RPC methods of the service quintet.v1.Inference.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/call.h"

namespace quintet {

struct Method {
  std::string path;         // for example "/quintet.v1.Inference/Generate"
  bool needs_key = true;    // whether the RPC needs an API key, if the server has keys
  bool long_lived = false;  // whether the RPC may stay open without a request in progress
  // Creates the handler of one RPC.
  std::function<std::shared_ptr<RpcHandler>(std::shared_ptr<Rpc>)> make;
};

// Returns all methods. `context` must outlive the handlers.
std::vector<Method> InferenceMethods(CallContext* context);

}  // namespace quintet
