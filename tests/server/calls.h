// Helpers for server tests: they build requests, make calls, and read the error details of a
// grpc::Status.
#pragma once

#include <functional>
#include <string>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/grpcpp.h"
#include "quintet/v1/inference.grpc.pb.h"

namespace quintet {

v1::GenerateRequest Word(const std::string& word, uint32_t beams = 1);
// Returns a request that generates exactly `tokens` tokens.
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

// Makes one Generate call without a client deadline.
grpc::Status Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
                      v1::GenerateResponse* response = nullptr);

// Waits until condition() is true, for example until the server has freed KV cache pages. Returns
// false if it is still false after 60 s.
bool Eventually(const std::function<bool()>& condition);

}  // namespace quintet
