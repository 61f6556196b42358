// gRPC server reflection, versions v1 and v1alpha: clients such as grpcurl learn the services and
// their messages from the server.
#pragma once

#include <string>
#include <vector>

#include "server/methods.h"

namespace quintet {

// `services`: full names of those to list.
std::vector<Method> ReflectionMethods(std::vector<std::string> services);

}  // namespace quintet
