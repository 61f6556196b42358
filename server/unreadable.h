// Requests that are no message of the contract: bytes that do not parse, text that is not UTF-8.
// gRPC's callback API answers them with UNIMPLEMENTED and no text, as if the method did not exist.
// This makes it INVALID_ARGUMENT, as for every other bad request.
#pragma once

#include "grpcpp/server_builder.h"

namespace quintet {

// Before BuildAndStart; once. An unreadable message of EncodeStream, whose reader cannot tell it
// from the end, still ends the stream like one.
void ExplainUnreadableMessages(grpc::ServerBuilder* builder);

}  // namespace quintet
