// The service quintet.admin.v1.Admin, and the methods of KServe that load and unload models. They
// begin an operation of ModelLoader and respond when that operation has ended.
#pragma once

#include <vector>

#include "server/call.h"
#include "server/methods.h"
#include "server/model_loader.h"

namespace quintet {

inline constexpr char kAdminService[] = "quintet.admin.v1.Admin";

// Returns these RPC methods. `context` and `loader` must outlive the RpcHandlers that they create.
std::vector<Method> AdminMethods(CallContext* context, ModelLoader* loader);

}  // namespace quintet
