#include "tests/server/calls.h"

#include <chrono>
#include <thread>

namespace quintet {

v1::GenerateRequest Word(const std::string& word, uint32_t beams) {
  v1::GenerateRequest request;
  request.mutable_input()->set_text(word);
  request.mutable_decoding()->set_num_beams(beams);
  request.mutable_decoding()->set_max_new_tokens(64);
  return request;
}

v1::GenerateRequest Endless(uint32_t tokens) {
  v1::GenerateRequest request = Word("wagner");
  request.mutable_decoding()->set_ignore_eos(true);
  request.mutable_decoding()->set_max_new_tokens(tokens);
  return request;
}

std::string ReasonOfStatus(const grpc::Status& status) {
  google::rpc::ErrorInfo info;
  return DetailOf(status, &info) ? info.reason() : "";
}

grpc::Status Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
                      v1::GenerateResponse* response) {
  grpc::ClientContext context;
  v1::GenerateResponse ignored;
  return stub.Generate(&context, request, response != nullptr ? response : &ignored);
}

bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 6000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace quintet
