// gRPC server reflection, versions v1 and v1alpha. With it, clients such as grpcurl get the
// services and message types from the server.
#pragma once

#include <string>
#include <vector>

#include "server/methods.h"

namespace quintet {

// Returns the reflection methods. `services` are the full names of the services to list.
std::vector<Method> ReflectionMethods(std::vector<std::string> services);

}  // namespace quintet
