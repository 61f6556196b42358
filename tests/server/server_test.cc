#include "server/server.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/generic/generic_stub.h"
#include "tests/catch.h"
#include "tests/server/calls.h"
#include "tests/server/running_server.h"

namespace quintet {
namespace {

TEST_CASE("Generate returns the same text as Hugging Face", "[server]") {
  RunningServer server;
  grpc::ClientContext context;
  v1::GenerateResponse response;
  v1::GenerateRequest request = Word("wagner", 4);
  request.mutable_call()->set_request_id("w-1");
  request.mutable_decoding()->set_return_scores(true);
  REQUIRE(server.stub().Generate(&context, request, &response).ok());
  REQUIRE(response.sequences_size() == 1);
  CHECK(response.sequences(0).text() == "W AE1 G N ER0");
  CHECK(response.sequences(0).score() == Approx(-0.00062).margin(2e-5));
  CHECK(response.sequences(0).finish_reason() == v1::FINISH_REASON_EOS);
  CHECK(response.info().request_id() == "w-1");
  CHECK(response.info().model() == "g2p");
  CHECK(response.info().usage().input_tokens() == 8);
  CHECK(server.Stop() == 0);
}

TEST_CASE("The chunks of a stream concatenate to the unary text", "[server]") {
  RunningServer server;
  for (const char* word : {"acclaimed", "deangelo", "extraordinarily"}) {
    grpc::ClientContext unary_context, stream_context;
    v1::GenerateResponse unary;
    REQUIRE(server.stub().Generate(&unary_context, Word(word), &unary).ok());
    auto reader = server.stub().GenerateStream(&stream_context, Word(word));
    std::string text;
    std::vector<uint32_t> ids;
    int complete = 0;
    for (v1::GenerateStreamResponse message; reader->Read(&message);) {
      REQUIRE(complete == 0);
      if (message.has_chunk()) {
        text += message.chunk().text();
        ids.insert(ids.end(), message.chunk().token_ids().begin(),
                   message.chunk().token_ids().end());
      } else {
        ++complete;
        CHECK(message.complete().sequences(0).text() == unary.sequences(0).text());
      }
    }
    CHECK(reader->Finish().ok());
    CHECK(complete == 1);
    CHECK(text == unary.sequences(0).text());
    CHECK(ids == std::vector<uint32_t>(unary.sequences(0).token_ids().begin(),
                                       unary.sequences(0).token_ids().end()));
  }
}

TEST_CASE("A beam search streams the common prefix of its beams, then the result", "[server]") {
  RunningServer server;
  int early = 0;
  // The server merges chunks that it has not yet written. On a busy machine it may merge all chunks
  // of a word, so try again until one word has arrived in several chunks.
  constexpr int kTries = 100;
  constexpr const char* kWords[] = {"acclaimed", "deangelo", "extraordinarily"};
  for (int i = 0; i < 3 || (early == 0 && i < kTries); ++i) {
    const char* word = kWords[i % 3];
    v1::GenerateResponse unary;
    REQUIRE(Generate(server.stub(), Word(word, 4), &unary).ok());
    grpc::ClientContext context;
    auto reader = server.stub().GenerateStream(&context, Word(word, 4));
    std::string text;
    std::vector<uint32_t> ids;
    int chunks = 0;
    for (v1::GenerateStreamResponse message; reader->Read(&message);) {
      if (!message.has_chunk()) continue;
      ++chunks;
      text += message.chunk().text();
      ids.insert(ids.end(), message.chunk().token_ids().begin(), message.chunk().token_ids().end());
    }
    CHECK(reader->Finish().ok());
    CHECK(text == unary.sequences(0).text());
    CHECK(ids == std::vector<uint32_t>(unary.sequences(0).token_ids().begin(),
                                       unary.sequences(0).token_ids().end()));
    early += chunks > 1;
  }
  CHECK(early > 0);
  // If several sequences are returned, the server streams no chunks: the first message is the final
  // result.
  v1::GenerateRequest several = Word("wagner", 4);
  several.mutable_decoding()->set_num_return_sequences(2);
  grpc::ClientContext context;
  auto reader = server.stub().GenerateStream(&context, several);
  v1::GenerateStreamResponse message;
  REQUIRE(reader->Read(&message));
  CHECK(message.has_complete());
  CHECK_FALSE(reader->Read(&message));
  CHECK(reader->Finish().ok());
}

TEST_CASE("Encode, Score, Tokenize, Detokenize and GetModelInfo return correct values",
          "[server]") {
  RunningServer server;
  {
    grpc::ClientContext context;
    v1::EncodeRequest request;
    for (const char* word : {"one", "two", "three"}) request.add_inputs()->set_text(word);
    request.mutable_options()->set_normalize(true);
    v1::EncodeResponse response;
    REQUIRE(server.stub().Encode(&context, request, &response).ok());
    REQUIRE(response.embeddings_size() == 3);
    CHECK(response.embeddings(0).rows() == 1);
    CHECK(response.embeddings(0).columns() == 256);
    REQUIRE(response.embeddings(0).values().size() == 1024);
    std::vector<float> values(256);
    std::memcpy(values.data(), response.embeddings(0).values().data(), 1024);
    double norm = 0;
    for (const float v : values) norm += static_cast<double>(v) * v;
    CHECK(norm == Approx(1.0).margin(1e-4));
  }
  {
    grpc::ClientContext context;
    v1::ScoreRequest request;
    request.mutable_input()->set_text("wagner");
    request.add_targets()->set_text("W AE1 G N ER0");
    request.add_targets()->set_text("B AE1 G N ER0");
    v1::ScoreResponse response;
    REQUIRE(server.stub().Score(&context, request, &response).ok());
    REQUIRE(response.scores_size() == 2);
    CHECK(response.scores(0).log_prob() > response.scores(1).log_prob() + 1);
    CHECK(response.scores(0).logprobs_size() == static_cast<int>(response.scores(0).tokens()));
  }
  {
    grpc::ClientContext context, back_context;
    v1::TokenizeRequest request;
    request.set_text("wagner");
    v1::TokenizeResponse tokens;
    REQUIRE(server.stub().Tokenize(&context, request, &tokens).ok());
    REQUIRE(tokens.tokens_size() == 8);  // the word boundary, six letters, eos
    CHECK(tokens.tokens(6).end_byte() == 6);
    v1::DetokenizeRequest back;
    for (const auto& token : tokens.tokens()) back.add_token_ids(token.id());
    v1::DetokenizeResponse text;
    REQUIRE(server.stub().Detokenize(&back_context, back, &text).ok());
    CHECK(text.text() == "wagner");
  }
  {
    grpc::ClientContext context;
    v1::GetModelInfoResponse info;
    REQUIRE(server.stub().GetModelInfo(&context, v1::GetModelInfoRequest(), &info).ok());
    CHECK(info.family() == "t5");
    CHECK(info.vocab() == 128);
    CHECK(info.limits().max_queue_requests() == 256);
  }
}

TEST_CASE("EncodeStream responds once to every item", "[server]") {
  RunningServer server;
  grpc::ClientContext context;
  auto stream = server.stub().EncodeStream(&context);
  constexpr uint64_t kItems = 200;
  std::thread writer([&] {
    for (uint64_t i = 0; i < kItems; ++i) {
      v1::EncodeStreamRequest request;
      request.set_item_id(i);
      request.mutable_input()->set_text(absl::StrCat("word", i));
      stream->Write(request);
    }
    stream->WritesDone();
  });
  std::set<uint64_t> seen;
  for (v1::EncodeStreamResponse response; stream->Read(&response);) {
    CHECK(response.embedding().values().size() == 1024);
    CHECK(seen.insert(response.item_id()).second);
  }
  writer.join();
  CHECK(stream->Finish().ok());
  CHECK(seen.size() == kItems);
}

TEST_CASE("A malformed message of EncodeStream fails the stream", "[server]") {
  RunningServer server;
  grpc::GenericStub stub(
      grpc::CreateChannel(server.options().listen, grpc::InsecureChannelCredentials()));
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    REQUIRE(queue.Next(&tag, &ok));
    return ok;
  };
  const std::string no_field = "\xFF\xFF", no_utf8 = "\x1A\x04\x0A\x02\xC3\x28";
  for (const std::string& bytes : {no_field, no_utf8}) {
    grpc::ClientContext context;
    auto stream = stub.PrepareCall(&context, "/quintet.v1.Inference/EncodeStream", &queue);
    stream->StartCall(nullptr);
    REQUIRE(next());
    const grpc::Slice slice(bytes);
    stream->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    REQUIRE(next());
    grpc::Status status;
    stream->Finish(&status, nullptr);
    REQUIRE(next());
    CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    CHECK(ReasonOfStatus(status) == "INVALID_FIELD");
  }
}

TEST_CASE("Errors have their code and details", "[server]") {
  RunningServer server;
  const auto generate = [&](const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    v1::GenerateResponse response;
    return server.stub().Generate(&context, request, &response);
  };
  {
    v1::GenerateRequest request = Word("a");
    request.mutable_call()->set_model("other");
    const grpc::Status status = generate(request);
    CHECK(status.error_code() == grpc::StatusCode::NOT_FOUND);
    CHECK(ReasonOfStatus(status) == "MODEL_NOT_FOUND");
  }
  {
    v1::GenerateRequest request = Word("a");
    request.mutable_input()->mutable_token_ids()->add_ids(128);
    const grpc::Status status = generate(request);
    CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    google::rpc::BadRequest bad;
    REQUIRE(DetailOf(status, &bad));
    CHECK(bad.field_violations(0).field() == "input.token_ids.ids[0]");
  }
  {
    v1::GenerateRequest request = Word("a");
    request.mutable_decoding()->set_length_penalty(std::numeric_limits<float>::quiet_NaN());
    CHECK(generate(request).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  }
  {
    v1::GenerateRequest request = Word("a");
    request.mutable_decoding()->set_temperature(0.5f);
    CHECK(generate(request).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  }
  CHECK(generate(v1::GenerateRequest()).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  {
    grpc::ClientContext context;
    v1::ClassifyRequest request;
    request.add_inputs()->set_text("a");
    v1::ClassifyResponse response;
    const grpc::Status status = server.stub().Classify(&context, request, &response);
    CHECK(status.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
    CHECK(ReasonOfStatus(status) == "HEAD_MISSING");
  }
  v1::GenerateResponse good;
  grpc::ClientContext context;
  CHECK(server.stub().Generate(&context, Word("wagner"), &good).ok());
}

TEST_CASE("Expired and cancelled calls release their resources", "[server]") {
  RunningServer server;
  v1::GenerateRequest request = Word("wagner");
  request.mutable_decoding()->set_ignore_eos(true);
  request.mutable_decoding()->set_max_new_tokens(4000);
  {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
    v1::GenerateResponse response;
    CHECK(server.stub().Generate(&context, request, &response).error_code() ==
          grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  {
    grpc::ClientContext context;
    auto reader = server.stub().GenerateStream(&context, request);
    v1::GenerateStreamResponse message;
    REQUIRE(reader->Read(&message));
    context.TryCancel();
    while (reader->Read(&message)) {
    }
    CHECK(reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
  }
  CHECK(Eventually([&] { return server.Metric("quintet_requests_running") == 0; }));
  CHECK(server.Metric("quintet_kv_cache_usage_ratio") == 0);
}

TEST_CASE("A full queue rejects calls with RetryInfo, and no call is lost", "[server]") {
  RunningServer server([](ServerOptions* options) {
    options->models[0].engine.max_queue_requests = 4;
    options->models[0].limits.max_running = 4;
  });
  std::atomic<int> done{0}, refused{0}, other{0}, without_retry{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&, i] {
      for (int j = 0; j < 20; ++j) {
        grpc::ClientContext context;
        v1::GenerateResponse response;
        const grpc::Status status =
            server.stub().Generate(&context, Word(absl::StrCat("word", i, "x", j)), &response);
        if (status.ok()) {
          ++done;
        } else if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
          google::rpc::RetryInfo retry;
          ++refused;
          if (!DetailOf(status, &retry)) ++without_retry;
        } else {
          ++other;
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  CHECK(done + refused == 320);
  CHECK(refused > 0);
  CHECK(without_retry == 0);
  CHECK(other == 0);
  CHECK(server.Metric("quintet_requests_accepted_total") == done);
  CHECK(server.Metric("quintet_requests_finished_total") == done);
  CHECK(server.Metric("quintet_requests_rejected_total{engine=\"0\",model_name=\"g2p\",reason="
                      "\"QUEUE_FULL\"}") == refused);
  CHECK(Eventually([&] { return server.Metric("quintet_requests_waiting") == 0; }));
}

TEST_CASE("Running calls finish while the server drains", "[server]") {
  RunningServer server;
  grpc::ClientContext context;
  v1::GenerateRequest request = Word("wagner");
  request.mutable_decoding()->set_ignore_eos(true);
  request.mutable_decoding()->set_max_new_tokens(300);
  auto reader = server.stub().GenerateStream(&context, request);
  v1::GenerateStreamResponse message;
  REQUIRE(reader->Read(&message));
  int exit_code = -1;
  std::thread stopper([&] { exit_code = server.Stop(); });
  bool complete = false;
  while (reader->Read(&message)) complete = complete || message.has_complete();
  CHECK(reader->Finish().ok());
  CHECK(complete);
  stopper.join();
  CHECK(exit_code == 0);
}

}  // namespace
}  // namespace quintet
