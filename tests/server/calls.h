// Helpers for server tests: building requests, and reading the details of statuses.
#pragma once

#include <functional>
#include <string>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/grpcpp.h"
#include "quintet/v1/inference.grpc.pb.h"

namespace quintet {

v1::GenerateRequest Word(const std::string& word, uint32_t beams = 1);
// Returns a request that generates exactly the given number of tokens.
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

// Makes one call without a client deadline.
grpc::Status Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
                      v1::GenerateResponse* response = nullptr);

// Waits at most 60 s for an asynchronous effect in the server, for example freed KV cache pages.
bool Eventually(const std::function<bool()>& condition);

}  // namespace quintet
