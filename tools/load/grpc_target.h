// A load target that calls a running server with asynchronous gRPC calls, all on one completion
// queue.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"
#include "inference/grpc_inference.grpc.pb.h"
#include "quintet/v1/inference.grpc.pb.h"
#include "tools/load/driver.h"

namespace quintet {

class GrpcTarget : public LoadTarget {
 public:
  struct Options {
    std::string address;  // HOST:PORT
    std::string model;    // empty: the only model of the server
    int channels = 1;     // number of connections, used round-robin
    bool stream = true;
    bool kserve = false;    // call KServe's protocol (server/KSERVE.md) in place of quintet.v1
    double timeout_s = 60;  // timeout of each call and, up to 10 s, of Connect
    int attempts = 1;       // more than 1: gRPC retries UNAVAILABLE
    v1::Priority priority = v1::PRIORITY_NORMAL;
  };

  // Opens the connections and calls GetModelInfo. Returns DEADLINE_EXCEEDED if no server answers;
  // other errors are the status that the server returned.
  static absl::StatusOr<std::unique_ptr<GrpcTarget>> Connect(const Options& options);
  ~GrpcTarget() override;

  const v1::GetModelInfoResponse& info() const { return info_; }

  void Send(uint64_t id, const PlannedRequest& request) override;
  void Poll(int64_t timeout_us, LoadObserver* observer) override;

 private:
  class Call;
  class UnaryCall;
  class StreamCall;
  class KserveCall;
  class KserveStreamCall;
  // The stubs of one connection.
  struct Stubs {
    std::unique_ptr<v1::Inference::Stub> quintet;
    std::unique_ptr<inference::GRPCInferenceService::Stub> kserve;
  };

  explicit GrpcTarget(const Options& options);
  // KServe: sets returns_text_.
  absl::Status ReadOutputs();
  v1::GenerateRequest MakeRequest(const PlannedRequest& planned) const;
  inference::ModelInferRequest MakeKserveRequest(const PlannedRequest& planned) const;
  // Starts `call`, which is its own tag in the completion queue. Poll gets it back from the queue
  // and deletes it when it has ended.
  template <typename CallType, typename Stub, typename Request>
  void Start(uint64_t id, Stub* stub, const Request& request);

  const Options options_;
  std::vector<Stubs> stubs_;
  grpc::CompletionQueue queue_;
  v1::GetModelInfoResponse info_;
  bool returns_text_ = false;  // KServe: the model has text_output; quintet.v1 returns it by itself
};

}  // namespace quintet
