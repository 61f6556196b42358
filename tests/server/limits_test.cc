// Tests of the limits on busy and misbehaving clients: the server continues to serve other clients
// and in the end releases all resources.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/catch.h"
#include "tests/server/calls.h"
#include "tests/server/running_server.h"
#include "tests/server/stub_model.h"

namespace quintet {
namespace {

using Reader = std::unique_ptr<grpc::ClientReader<v1::GenerateStreamResponse>>;

// A GenerateStream call in progress.
struct LimitedStream {
  grpc::ClientContext context;
  Reader reader;

  LimitedStream(v1::Inference::Stub& stub, const v1::GenerateRequest& request)
      : reader(stub.GenerateStream(&context, request)) {}
  void ReadOne() {
    v1::GenerateStreamResponse message;
    REQUIRE(reader->Read(&message));
  }
  grpc::Status ReadAll() {
    for (v1::GenerateStreamResponse message; reader->Read(&message);) {
    }
    return reader->Finish();
  }
};

bool AtRest(const RunningServer& server) {
  return server.Metric("quintet_open_calls") == 0 &&
         server.Metric("quintet_requests_running") == 0 &&
         server.Metric("quintet_requests_waiting") == 0 &&
         server.Metric("quintet_queue_tokens") == 0 &&
         server.Metric("quintet_kv_cache_usage_ratio") == 0 &&
         server.Metric("quintet_requests_accepted_total") ==
             server.Metric("quintet_requests_finished_total");
}

v1::GenerateRequest IdsRequest(int count, uint32_t tokens) {
  v1::GenerateRequest request = Endless(tokens);
  request.mutable_input()->clear_text();
  for (int i = 0; i < count; ++i) request.mutable_input()->mutable_token_ids()->add_ids(40);
  return request;
}

TEST_CASE("With most queue tokens in use a large request is rejected and a small one admitted",
          "[limits]") {
  auto control = std::make_shared<StubControl>();
  control->step_us = 2000;
  RunningServer server([&](ServerOptions* options) {
    UseStub(&options->models[0], control);
    options->models[0].limits.max_running = 1;
    options->models[0].engine.max_queue_tokens = 100;
  });
  LimitedStream running(server.stub(), Endless(4000));
  running.ReadOne();
  LimitedStream waiting(server.stub(), IdsRequest(60, 1));
  REQUIRE(Eventually([&] { return server.Metric("quintet_queue_tokens") == 60; }));
  const grpc::Status giant = Generate(server.stub(), IdsRequest(50, 1));
  CHECK(giant.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(ReasonOfStatus(giant) == "QUEUE_FULL");
  google::rpc::RetryInfo retry;
  CHECK(DetailOf(giant, &retry));
  LimitedStream small(server.stub(), IdsRequest(10, 1));
  CHECK(Eventually([&] { return server.Metric("quintet_requests_waiting") == 2; }));
  // A request of 200 input tokens exceeds the limit of the whole queue, 100 tokens, and can never
  // be admitted: the error must be INVALID_ARGUMENT, without RetryInfo.
  running.context.TryCancel();
  CHECK(running.ReadAll().error_code() == grpc::StatusCode::CANCELLED);
  CHECK(waiting.ReadAll().ok());
  CHECK(small.ReadAll().ok());
  CHECK(Eventually([&] { return AtRest(server); }));
  const grpc::Status never = Generate(server.stub(), IdsRequest(200, 1));
  CHECK(never.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_CASE("A request whose deadline passes in the queue never reaches the model", "[limits]") {
  auto control = std::make_shared<StubControl>();
  control->step_us = 1000;
  RunningServer server([&](ServerOptions* options) {
    UseStub(&options->models[0], control);
    options->models[0].limits.max_running = 1;
    options->default_timeout_us = 300'000;
  });
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(5));
  const Reader running = server.stub().GenerateStream(&context, Endless(4000));
  v1::GenerateStreamResponse message;
  REQUIRE(running->Read(&message));
  const int64_t encoded = control->encoded_tokens;
  const grpc::Status late = Generate(server.stub(), IdsRequest(30, 1));
  CHECK(late.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  CHECK(ReasonOfStatus(late) == "QUEUED");
  CHECK(control->encoded_tokens == encoded);
  context.TryCancel();
  while (running->Read(&message)) {
  }
  running->Finish();
  CHECK(Eventually([&] { return AtRest(server); }));
  const grpc::Status decoding = Generate(server.stub(), Endless(4000));
  CHECK(decoding.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  CHECK(ReasonOfStatus(decoding) == "DECODING");
  CHECK(Eventually([&] { return AtRest(server); }));
}

TEST_CASE("After a thousand cancelled streams all resources are released", "[limits]") {
  RunningServer server([](ServerOptions* options) {
    options->models[0].engine.max_queue_requests = 1000;
    options->models[0].limits.max_running = 64;
  });
  std::vector<std::unique_ptr<LimitedStream>> streams;
  for (int i = 0; i < 1000; ++i) {
    streams.push_back(std::make_unique<LimitedStream>(server.stub(), Endless(2000)));
  }
  REQUIRE(Eventually([&] { return server.Metric("quintet_requests_accepted_total") == 1000; }));
  CHECK(server.Metric("quintet_open_calls") == 1000);
  for (const auto& stream : streams) stream->context.TryCancel();
  for (const auto& stream : streams) {
    CHECK(stream->ReadAll().error_code() == grpc::StatusCode::CANCELLED);
  }
  CHECK(Eventually([&] { return AtRest(server); }));
  CHECK(server.Metric("quintet_requests_finished_total{engine=\"0\",model_name=\"g2p\",reason="
                      "\"cancelled\"}") == 1000);
  CHECK(Generate(server.stub(), Word("wagner")).ok());
}

TEST_CASE("A stream whose client stops reading is cancelled, and the others continue", "[limits]") {
  auto control = std::make_shared<StubControl>();
  RunningServer server([&](ServerOptions* options) {
    UseStub(&options->models[0], control);
    options->models[0].decoding.max_new_tokens = 200'000;
    options->models[0].limits.cache_bytes = int64_t{8}
                                            << 30;  // only planned: the stub allocates nothing
  });
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65536);
  const auto stub = v1::Inference::NewStub(grpc::CreateCustomChannel(
      server.options().listen, grpc::InsecureChannelCredentials(), arguments));
  v1::GenerateRequest request = Endless(60'000);
  request.mutable_decoding()->set_do_sample(true);
  request.mutable_decoding()->set_num_return_sequences(16);
  LimitedStream stalled(*stub, request);
  stalled.ReadOne();
  for (int i = 0; i < 5; ++i) CHECK(Generate(server.stub(), Endless(20)).ok());
  // The 16 sequences of the stalled call produce 1 to 2 MB of chunks. That is more than the server
  // buffers for one call, so the server must cancel the stalled call.
  const auto cancelled = [&] {
    return server.Metric(
               "quintet_requests_finished_total{engine=\"0\",model_name=\"g2p\",reason="
               "\"cancelled\"}") == 1;
  };
  CHECK(Eventually(cancelled));
  CHECK(stalled.ReadAll().error_code() == grpc::StatusCode::CANCELLED);
  CHECK(Eventually([&] { return AtRest(server); }));
  // If its client reads the chunks, a stream of 16 * 11'000 tokens completes without an error.
  request.mutable_decoding()->set_max_new_tokens(11'000);
  LimitedStream reading(*stub, request);
  CHECK(reading.ReadAll().ok());
}

TEST_CASE("Unusual metadata affects no other call", "[limits]") {
  RunningServer server;
  const auto call = [&](const std::vector<std::pair<std::string, std::string>>& metadata) {
    grpc::ClientContext context;
    for (const auto& [key, value] : metadata) context.AddMetadata(key, value);
    v1::GenerateResponse response;
    return server.stub().Generate(&context, Word("wagner"), &response).error_code();
  };
  CHECK(call({{"authorization", std::string(2000, 'x')}}) == grpc::StatusCode::OK);
  CHECK(call({{"x-bytes-bin", std::string("\0\xff\n", 3)}}) == grpc::StatusCode::OK);
  std::vector<std::pair<std::string, std::string>> many;
  for (int i = 0; i < 100; ++i) many.emplace_back(absl::StrCat("x-", i), std::string(10, 'v'));
  CHECK(call(many) == grpc::StatusCode::OK);
  CHECK(call({{"x-large", std::string(100'000, 'x')}}) != grpc::StatusCode::OK);
  // The call with large metadata may have made gRPC close the connection. Repeat a call with small
  // metadata until it succeeds on a new connection.
  CHECK(Eventually([&] {
    return call({{"grpc-timeout-like", "1S"}, {"te-like", "gzip"}}) == grpc::StatusCode::OK;
  }));
  CHECK(Eventually([&] { return AtRest(server); }));
}

TEST_CASE("Model names and request ids are bounded in every RPC", "[limits]") {
  RunningServer server;
  v1::GenerateRequest request = Word("a");
  request.mutable_call()->set_model(std::string(129, 'm'));
  CHECK(Generate(server.stub(), request).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  v1::TokenizeRequest tokenize;
  tokenize.set_text("wagner");
  v1::TokenizeResponse tokens;
  {
    grpc::ClientContext context;
    tokenize.mutable_call()->set_request_id("a b");
    CHECK(server.stub().Tokenize(&context, tokenize, &tokens).error_code() ==
          grpc::StatusCode::INVALID_ARGUMENT);
  }
  {
    grpc::ClientContext context;
    tokenize.mutable_call()->set_request_id("");
    REQUIRE(server.stub().Tokenize(&context, tokenize, &tokens).ok());
    CHECK_FALSE(tokens.info().request_id().empty());
  }
  v1::EncodeRequest encode;
  for (int i = 0; i < 300; ++i) encode.add_inputs()->set_text("a");
  grpc::ClientContext context;
  v1::EncodeResponse response;
  CHECK(server.stub().Encode(&context, encode, &response).error_code() ==
        grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(server.Metric("quintet_requests_rejected_total{engine=\"0\",model_name=\"g2p\",reason="
                      "\"INVALID_FIELD\"}") == 1);
  CHECK(server.Metric("quintet_requests_rejected_total{engine=\"0\",model_name=\"none\",reason="
                      "\"INVALID_FIELD\"}") == 2);
}

TEST_CASE("The tokenization of a long text counts in Timing.tokenize_us", "[limits]") {
  RunningServer server;
  v1::TokenizeRequest request;
  request.set_text(std::string(100000, 'a'));
  v1::TokenizeResponse response;
  grpc::ClientContext context;
  REQUIRE(server.stub().Tokenize(&context, request, &response).ok());
  const v1::Timing& timing = response.info().timing();
  CHECK(timing.tokenize_us() >= 500);  // tokenization takes milliseconds
  CHECK(timing.total_us() >= timing.tokenize_us());
}

}  // namespace
}  // namespace quintet
