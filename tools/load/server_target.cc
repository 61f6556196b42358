#include "tools/load/server_target.h"

#include "kernels/base/check.h"
#include "tools/load/grpc_target.h"
#include "tools/load/http_target.h"
#include "tools/load/kserve_target.h"

namespace quintet {

const std::vector<Protocol>& Protocols() {
  static const auto* const protocols = new std::vector<Protocol>{
      {"grpc", "quintet.v1 over gRPC", /*retries=*/true, ConnectGrpc},
      {"kserve", "KServe v2 over gRPC", /*retries=*/true, ConnectKserve},
      {"http", "completions of the HTTP API", /*retries=*/false, ConnectHttp},
  };
  return *protocols;
}

const Protocol& ProtocolOf(const std::string& name) {
  for (const Protocol& protocol : Protocols()) {
    if (name == protocol.name) return protocol;
  }
  QT_CHECK(false);
  return Protocols()[0];
}

}  // namespace quintet
