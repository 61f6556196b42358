#include "server/message_bytes.h"

#include <malloc.h>

#include <string>

#include "quintet/v1/inference.pb.h"
#include "tests/catch.h"

namespace quintet {
namespace {

v1::EncodeRequest WithIds(int count) {
  v1::EncodeRequest request;
  for (int i = 0; i < count; ++i) request.add_inputs()->mutable_token_ids()->add_ids(i);
  return request;
}

TEST_CASE("An arena message is parsed like any other") {
  const v1::EncodeRequest request = WithIds(3);
  ArenaMessage<v1::EncodeRequest> parsed;
  grpc::ByteBuffer bytes = ToBytes(request);
  REQUIRE(FromBytes(&bytes, parsed.get()));
  CHECK(parsed->SerializeAsString() == request.SerializeAsString());
  parsed.Reset();
  CHECK(parsed->inputs_size() == 0);
  std::string cut = request.SerializeAsString();
  cut.pop_back();
  const grpc::Slice slice(cut);
  grpc::ByteBuffer malformed(&slice, 1);
  CHECK_FALSE(FromBytes(&malformed, parsed.get()));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Bytes of the heap in use.
size_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST_CASE("A reset arena message holds no memory of what was parsed") {
  ArenaMessage<v1::EncodeRequest> parsed;
  grpc::ByteBuffer bytes = ToBytes(WithIds(20'000));
  const size_t before = HeapBytes();
  REQUIRE(FromBytes(&bytes, parsed.get()));
  const size_t full = HeapBytes();
  CHECK(full > before + (size_t{1} << 20));
  parsed.Reset();
  CHECK(HeapBytes() < before + (size_t{64} << 10));
}
#endif

}  // namespace
}  // namespace quintet
