// The gRPC server for administration (--admin-listen): quintet.admin.v1.Admin, KServe's methods
// about the repository of models, health and reflection. It has its own listener and API keys, and
// its own limits on open RPCs, so that inference calls cannot keep administrators out.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "server/certificate_files.h"
#include "server/health.h"
#include "server/listener.h"
#include "server/model_loader.h"
#include "server/server.h"
#include "server/service.h"

namespace quintet {

class AdminServer {
 public:
  // Starts to serve. `calls` is the context of the main server; its executors and all pointers must
  // outlive this object. Returns INVALID_ARGUMENT if the server cannot listen on
  // options.admin_listen, or if no file of API keys is given or the file is invalid.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(const ServerOptions& options,
                                                            const CallContext& calls,
                                                            ModelLoader* loader,
                                                            HealthStatus* health,
                                                            const CertificateFiles* certificates);
  // Cancels the open RPCs. Loads and unloads of models that they have begun continue.
  ~AdminServer();
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

  int port() const { return listener_.port(); }
  ApiKeys* keys() { return &keys_; }
  // Ends RPCs whose clients have exceeded a time limit. Called once a second.
  void Check(int64_t now_us) { context_.rpcs.Check(now_us); }

 private:
  AdminServer() = default;
  absl::Status Listen(const ServerOptions& options, const CertificateFiles* certificates);

  ApiKeys keys_;
  CallContext context_;
  std::unique_ptr<RpcService> service_;
  std::unique_ptr<grpc::Server> server_;
  Listener listener_;  // declared after server_, so that it is destroyed first
};

}  // namespace quintet
