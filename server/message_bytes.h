// Messages to and from the bytes that gRPC carries.
#pragma once

#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"

namespace quintet {

// Throws std::bad_alloc.
grpc::ByteBuffer ToBytes(const google::protobuf::MessageLite& message);
// False: the bytes are not a `message`. Clears `bytes`.
bool FromBytes(grpc::ByteBuffer* bytes, google::protobuf::MessageLite* message);

}  // namespace quintet
