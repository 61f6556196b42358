// Serialization of protobuf messages to and from gRPC byte buffers.
#pragma once

#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"

namespace quintet {

// Serializes `message`. Throws std::bad_alloc.
grpc::ByteBuffer ToBytes(const google::protobuf::MessageLite& message);
// Parses `bytes` into `message` and clears `bytes`. Returns false if the bytes do not parse.
bool FromBytes(grpc::ByteBuffer* bytes, google::protobuf::MessageLite* message);

}  // namespace quintet
