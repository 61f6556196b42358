// Serialization of protobuf messages to and from gRPC byte buffers.
#pragma once

#include <memory>

#include "google/protobuf/arena.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"

namespace quintet {

// Serializes `message`. Throws std::bad_alloc.
grpc::ByteBuffer ToBytes(const google::protobuf::MessageLite& message);
// Parses `bytes` into `message` and clears `bytes`. Returns false if the bytes do not parse.
bool FromBytes(grpc::ByteBuffer* bytes, google::protobuf::MessageLite* message);

// A message to parse into, on an arena of its own. The generated parser marks a message member of a
// oneof as set before it allocates the member, as mutable_X() does (server/oneof.h). After
// std::bad_alloc the destructor of the message must therefore not run; the arena frees the memory
// without it.
template <typename Proto>
class ArenaMessage {
 public:
  Proto& operator*() const { return *message_; }
  Proto* operator->() const { return message_; }
  Proto* get() const { return message_; }
  // Makes the message empty and frees its memory. Throws std::bad_alloc.
  void Reset() {
    arena_->Reset();
    message_ = New(arena_.get());
  }

 private:
#if GOOGLE_PROTOBUF_VERSION >= 5026000
  static Proto* New(google::protobuf::Arena* arena) {
    return google::protobuf::Arena::Create<Proto>(arena);
  }
#else
  static Proto* New(google::protobuf::Arena* arena) {
    return google::protobuf::Arena::CreateMessage<Proto>(arena);
  }
#endif
  const std::unique_ptr<google::protobuf::Arena> arena_ =
      std::make_unique<google::protobuf::Arena>();
  Proto* message_ = New(arena_.get());
};

}  // namespace quintet
