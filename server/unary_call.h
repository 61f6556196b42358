// Base class of the handlers of unary methods: one request message, one response message.
#pragma once

#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "server/call.h"
#include "server/message_bytes.h"
#include "server/single_message_handler.h"

namespace quintet {

template <typename RequestProto, typename ResponseProto>
class UnaryCall : public Call, public SingleMessageHandler {
 public:
  using Call::Call;

  void OnMessage(grpc::ByteBuffer* message) final {
    SetReceived();
    try {
      if (!Parse(message, request_.get())) return;
      const v1::CallOptions options = CallOptionsOf(request_.get());
      Start(options, Size(*request_));
    } catch (const std::bad_alloc&) {
      EndOutOfMemory();
    }
  }
  void OnInputEnd() final {
    End(absl::InvalidArgumentError("the call has no message: expected one request"));
  }
  void OnCancel() final { Cancel(); }
  void Abandon() final { Call::Abandon(); }

 protected:
  // Returns the options of the call. Called first; may change the request.
  virtual v1::CallOptions CallOptionsOf(RequestProto* request) {
    if constexpr (requires { request->call(); }) {
      return request->call();
    } else {
      v1::CallOptions options;
      if constexpr (requires { request->model(); }) options.set_model(request->model());
      if constexpr (requires { request->name(); }) options.set_model(request->name());
      return options;
    }
  }
  // Returns the size that admission control uses (CallSize): a number of requests and the bytes of
  // their inputs, where a token id counts as 3 bytes.
  virtual CallSize Size(const RequestProto& request) const = 0;
  // Fills the response from the results of the engine.
  virtual void Write(const std::vector<Result>& results, ResponseProto* response) = 0;

  ArenaMessage<RequestProto> request_;

 private:
  absl::Status Respond(std::vector<Result> results) final {
    ResponseProto response;
    Write(results, &response);
    if constexpr (requires { response.mutable_info(); }) {
      FillInfo(results, response.mutable_info());
    }
    std::vector<Result>().swap(results);
    request_.Reset();
    SetResponse(Serialize(response));
    return absl::OkStatus();
  }
  void Ended(RpcOutcome outcome) final {
    SetOutcome(std::move(outcome));
    rpc()->Wake();
  }
};

}  // namespace quintet
