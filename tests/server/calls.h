// What the server's tests say and hear: requests, and the details of statuses.
#pragma once

#include <functional>
#include <string>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/grpcpp.h"
#include "quintet/v1/inference.grpc.pb.h"

namespace quintet {

v1::GenerateRequest Word(const std::string& word, uint32_t beams = 1);
// Generates exactly so many tokens.
v1::GenerateRequest Endless(uint32_t tokens);

template <typename Detail>
bool DetailOf(const grpc::Status& status, Detail* detail) {
  google::rpc::Status proto;
  if (!proto.ParseFromString(status.error_details())) return false;
  for (const auto& any : proto.details()) {
    if (any.UnpackTo(detail)) return true;
  }
  return false;
}
std::string ReasonOfStatus(const grpc::Status& status);

// One call without a deadline of the client's.
grpc::Status Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
                      v1::GenerateResponse* response = nullptr);

// Waits, 60 s at most, for what the server does on its own time: a cancelled call's pages.
bool Eventually(const std::function<bool()>& condition);

}  // namespace quintet
