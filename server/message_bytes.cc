#include "server/message_bytes.h"

#include "kernels/base/check.h"

// gRPC 1.66 moved proto_utils.h from grpcpp/impl/codegen/ to grpcpp/impl/.
#if __has_include("grpcpp/impl/codegen/proto_utils.h")
#include "grpcpp/impl/codegen/proto_utils.h"
#else
#include "grpcpp/impl/proto_utils.h"
#endif

namespace quintet {

using Traits = grpc::SerializationTraits<google::protobuf::MessageLite>;

grpc::ByteBuffer ToBytes(const google::protobuf::MessageLite& message) {
  grpc::ByteBuffer bytes;
  bool own_buffer = false;
  QT_CHECK(Traits::Serialize(message, &bytes, &own_buffer).ok());
  return bytes;
}

bool FromBytes(grpc::ByteBuffer* bytes, google::protobuf::MessageLite* message) {
  const bool read = Traits::Deserialize(bytes, message).ok();
  bytes->Clear();
  return read;
}

}  // namespace quintet
