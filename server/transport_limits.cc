#include "server/transport_limits.h"

#include "grpcpp/resource_quota.h"
#include "server/server_memory.h"

namespace quintet {
namespace {

constexpr int kMaxMetadataBytes = 16 << 10;  // per RPC
constexpr int kMaxConcurrentStreams = 1024;  // per connection

}  // namespace

void SetTransportLimits(const ServerOptions& options, grpc::ServerBuilder* builder) {
  const auto set = [builder](const char* name, int value) {
    builder->AddChannelArgument(name, value);
  };
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  // A compressed message could inflate to a thousand times its size before the server sees it.
  // Therefore compressed messages are rejected with UNIMPLEMENTED.
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  set(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  set(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  set(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxConcurrentStreams);
  set(GRPC_ARG_MAX_CONNECTION_AGE_MS, 600'000);
  set(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, static_cast<int>(options.max_timeout_us / 1000));
  set(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  // Closes connections whose peer does not answer pings because it is gone or does not read.
  set(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  set(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  const int64_t quota = GrpcQuotaBytes(ReadProcessMemory(), options.max_message_bytes);
  builder->SetResourceQuota(grpc::ResourceQuota("quintet").Resize(static_cast<size_t>(quota)));
}

}  // namespace quintet
