// Requests that are no message of the contract: bytes that do not parse, text that is not UTF-8.
// gRPC's callback API answers them with UNIMPLEMENTED and no text, as if the method did not exist.
// This makes it INVALID_ARGUMENT, as for every other bad request.
#pragma once

#include "grpcpp/server_builder.h"
#include "server/errors.h"

namespace quintet {

// What a call ends with that brought such a message.
RpcOutcome UnreadableMessage();

// Before BuildAndStart; once. Of EncodeStream, which reads bytes, the reader itself has to say it.
// What libprotobuf says to standard error about such messages goes to the log, once.
void ExplainUnreadableMessages(grpc::ServerBuilder* builder);

}  // namespace quintet
