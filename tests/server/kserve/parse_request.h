// Requests of the KServe protocol in protobuf's text format.
#pragma once

#include <string>

#include "google/protobuf/text_format.h"
#include "inference/grpc_inference.pb.h"
#include "tests/catch.h"

namespace quintet {

inline ::inference::ModelInferRequest ParseRequest(const std::string& text) {
  ::inference::ModelInferRequest request;
  REQUIRE(google::protobuf::TextFormat::ParseFromString(text, &request));
  return request;
}

}  // namespace quintet
