// Tests an RPC under all orders of events. A fake gRPC stream delivers reads, writes, cancellation,
// timeouts and the end in every order that gRPC allows, from one or two threads, to every method of
// the server. Meanwhile requests complete on the engine thread. The fake checks that the reactor
// follows the rules of gRPC's callback API.
#include "server/grpc_rpc.h"

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/clock.h"
#include "grpc/health/v1/health.pb.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "server/health.h"
#include "server/kserve/methods.h"
#include "server/kserve/tensors.h"
#include "server/message_bytes.h"
#include "server/methods.h"
#include "server/reflection.h"
#include "tests/catch.h"
#include "tests/server/calls.h"
#include "tests/server/failing_allocation.h"
#include "tests/server/stub_host.h"
#include "xds/service/orca/v3/orca.pb.h"

namespace quintet {
namespace {

using grpc::ByteBuffer;

// Simulates gRPC for one RPC. The reactor starts operations; each call of Step completes one of
// them.
class FakeStream final : public grpc::ServerCallbackReaderWriter<ByteBuffer, ByteBuffer> {
 public:
  explicit FakeStream(std::vector<ByteBuffer> messages) : messages_(std::move(messages)) {}

  void Bind(GrpcRpc* rpc) {
    rpc_ = rpc;
    BindReactor(rpc);
  }
  // Simulates that the client disconnects. After that the stream delivers no more messages, only
  // the end of the input and the completions of operations in flight.
  void HangUp() {
    std::lock_guard<std::mutex> lock(mutex_);
    hung_up_ = true;
  }
  void Cancel() {
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
  }
  bool done() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }
  std::vector<std::string> violations() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return violations_;
  }
  grpc::Status status() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return status_;
  }
  // Returns the state of the stream as text for the messages of failed tests.
  std::string state() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return absl::StrCat("reading ", reading_ != nullptr, ", writing ", writing_, ", finished ",
                        finished_, ", hung up ", hung_up_, ", cancelled ", cancelled_, " told ",
                        told_cancelled_, ", in flight ", in_flight_, ", written ", written_);
  }
  int written() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return written_;
  }

  // Delivers one event, chosen by `random` among those that gRPC could deliver now. May be called
  // from any thread. Returns false once OnDone has been delivered.
  bool Step(std::mt19937_64* random) {
    using Event = void (FakeStream::*)();
    std::array<Event, 6> events;  // allocates nothing: tests let allocations of this thread fail
    size_t count = 0;
    const auto add = [&](Event event) { events[count++] = event; };
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (done_) return false;
      const bool dead = cancelled_ || finished_;
      if (reading_ != nullptr) {
        // A message may still arrive after the reactor has called Finish.
        if (!hung_up_ && !cancelled_ && !messages_.empty()) add(&FakeStream::Message);
        if (hung_up_ || dead) add(&FakeStream::EndOfInput);
      }
      if (writing_) add(cancelled_ ? &FakeStream::WriteFails : &FakeStream::Writes);
      if (cancelled_ && !told_cancelled_) add(&FakeStream::TellsCancelled);
      if (finished_ && reading_ == nullptr && !writing_ && in_flight_ == 0 &&
          (told_cancelled_ || !cancelled_)) {
        add(&FakeStream::Done);
      }
      if (count == 0) return true;
      ++in_flight_;
    }
    (this->*events[(*random)() % count])();
    return true;
  }

  // The reactor calls the functions below; they replace those of gRPC.
  void Read(ByteBuffer* message) override {
    std::lock_guard<std::mutex> lock(mutex_);
    Expect(reading_ == nullptr, "a read while one is outstanding");
    Expect(!finished_, "a read after the end");
    reading_ = message;
  }
  void Write(const ByteBuffer*, grpc::WriteOptions) override {
    std::lock_guard<std::mutex> lock(mutex_);
    Expect(!writing_, "a write while one is outstanding");
    Expect(!finished_, "a write after the end");
    writing_ = true;
    ++written_;
  }
  void Finish(grpc::Status status) override {
    std::lock_guard<std::mutex> lock(mutex_);
    Expect(!finished_, "a second end");
    Expect(!writing_, "an end while a write is outstanding");
    finished_ = true;
    status_ = std::move(status);
  }
  void WriteAndFinish(const ByteBuffer*, grpc::WriteOptions, grpc::Status status) override {
    Finish(std::move(status));
    std::lock_guard<std::mutex> lock(mutex_);
    ++written_;
  }
  void SendInitialMetadata() override {}

 private:
  grpc::internal::ServerReactor* reactor() override { return rpc_; }
  void CallOnDone() override {}

  void Expect(bool holds, const char* violation) {
    if (!holds) violations_.push_back(violation);
    if (done_) violations_.push_back("an operation after OnDone");
  }

  // Each function below delivers one kind of event. Under the lock it first checks that the event
  // is still pending and removes it (Claim); hence two threads cannot deliver the same event twice.
  void Message() {
    if (!Claim([&] {
          if (reading_ == nullptr || messages_.empty()) return false;
          *reading_ = messages_.back();
          messages_.pop_back();
          reading_ = nullptr;
          return true;
        })) {
      return;
    }
    rpc_->OnReadDone(true);
    Landed();
  }
  void EndOfInput() {
    if (!Claim([&] { return std::exchange(reading_, nullptr) != nullptr; })) return;
    rpc_->OnReadDone(false);
    Landed();
  }
  void Writes() { WriteDone(true); }
  void WriteFails() { WriteDone(false); }
  void WriteDone(bool ok) {
    if (!Claim([&] { return std::exchange(writing_, false); })) return;
    rpc_->OnWriteDone(ok);
    Landed();
  }
  void TellsCancelled() {
    if (!Claim([&] { return !std::exchange(told_cancelled_, true); })) return;
    rpc_->OnCancel();
    Landed();
  }
  void Done() {
    if (!Claim([&] {
          // OnDone must be the last event: no other event may be in flight.
          if (done_ || in_flight_ != 1 || reading_ != nullptr || writing_) return false;
          done_ = true;
          return true;
        })) {
      return;
    }
    rpc_->OnDone();
  }
  template <typename Take>
  bool Claim(Take take) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (take()) return true;
    --in_flight_;
    return false;
  }
  void Landed() {
    std::lock_guard<std::mutex> lock(mutex_);
    --in_flight_;
  }

  GrpcRpc* rpc_ = nullptr;
  mutable std::mutex mutex_;
  std::vector<ByteBuffer> messages_;
  ByteBuffer* reading_ = nullptr;
  bool writing_ = false, finished_ = false, done_ = false;
  bool hung_up_ = false, cancelled_ = false, told_cancelled_ = false;
  int in_flight_ = 0, written_ = 0;
  grpc::Status status_;
  std::vector<std::string> violations_;
};

class TestRpc final : public GrpcRpc {
 public:
  TestRpc(FakeStream* stream, grpc::CallbackServerContext* context, RpcRegistry* open,
          RpcRegistry::Registration registration)
      : GrpcRpc(context, {.open = open}, std::move(registration)), stream_(stream) {}
  void TryCancel() override { stream_->Cancel(); }

 private:
  FakeStream* const stream_;
};

bool EndsWith(const std::string& path, const char* name) {
  return path.size() > std::strlen(name) &&
         path.compare(path.size() - std::strlen(name), std::string::npos, name) == 0;
}

ByteBuffer Bytes(const std::string& text) {
  grpc::Slice slice(text);
  return ByteBuffer(&slice, 1);
}

kserve::InferParameter* AddParameter(const char* name, kserve::ModelInferRequest* request) {
  auto* const parameter = request->add_parameters();
  parameter->set_key(name);
  return parameter->mutable_value();
}

// Returns a ModelInferRequest that generates exactly `tokens` tokens.
kserve::ModelInferRequest Infer(int64_t tokens, bool stream) {
  kserve::ModelInferRequest request;
  auto* input = request.add_inputs();
  input->set_name("text_input");
  input->set_datatype("BYTES");
  input->add_shape(1);
  input->mutable_contents()->add_bytes_contents("wagner");
  AddParameter("ignore_eos", &request)->set_bool_param(true);
  AddParameter("max_new_tokens", &request)->set_int64_param(tokens);
  if (stream) AddParameter("stream", &request)->set_bool_param(true);
  return request;
}

// Returns a request message for the method at `path`. Most messages are valid, some contain invalid
// ids or lack their input, and some cannot be parsed.
ByteBuffer MessageOf(const std::string& path, std::mt19937_64* random) {
  const auto below = [random](int n) { return static_cast<int>((*random)() % n); };
  if (below(8) == 0) return Bytes("\xff\xff\xff\xff");
  const int kind = below(4);
  const auto fill = [&](v1::Input* input) {
    if (kind == 0) return;
    if (kind == 1) {
      input->mutable_token_ids()->add_ids(999999);
    } else {
      input->set_text("wagner");
    }
  };
  if (EndsWith(path, "/Generate") || EndsWith(path, "/GenerateStream")) {
    v1::GenerateRequest request = Endless(static_cast<uint32_t>(1 + below(30)));
    if (kind < 2) request.clear_input();
    fill(request.mutable_input());
    return ToBytes(request);
  }
  if (EndsWith(path, "/EncodeStream")) {
    v1::EncodeStreamRequest request;
    request.set_item_id(7);
    fill(request.mutable_input());
    return ToBytes(request);
  }
  if (EndsWith(path, "/Encode")) {
    v1::EncodeRequest request;
    for (int i = 0; i < 3; ++i) fill(request.add_inputs());
    return ToBytes(request);
  }
  if (EndsWith(path, "/Score")) {
    v1::ScoreRequest request;
    fill(request.mutable_input());
    fill(request.add_targets());
    return ToBytes(request);
  }
  if (EndsWith(path, "/Tokenize")) {
    v1::TokenizeRequest request;
    request.set_text("wagner");
    return ToBytes(request);
  }
  if (EndsWith(path, "/Detokenize")) {
    v1::DetokenizeRequest request;
    request.add_token_ids(kind == 1 ? 999999 : 40);
    return ToBytes(request);
  }
  if (EndsWith(path, "/ModelInfer") || EndsWith(path, "/ModelStreamInfer")) {
    kserve::ModelInferRequest request = Infer(static_cast<int64_t>(1 + below(30)), below(2) == 0);
    if (kind == 0) request.mutable_inputs(0)->clear_contents();
    if (kind == 1) AddParameter("num_beams", &request)->set_int64_param(99);
    return ToBytes(request);
  }
  if (EndsWith(path, "/ServerReflectionInfo")) {
    grpc::reflection::v1::ServerReflectionRequest request;
    if (kind > 0) request.set_list_services("*");
    return ToBytes(request);
  }
  if (EndsWith(path, "/StreamCoreMetrics")) {
    xds::service::orca::v3::OrcaLoadReportRequest request;
    if (kind > 0) request.mutable_report_interval()->set_seconds(kind - 2);
    return ToBytes(request);
  }
  return ByteBuffer(ToBytes(grpc::health::v1::HealthCheckRequest()));
}

// Admits and starts an RPC of the client `peer`. `stream` and `context` must outlive the RPC.
// Returns a pointer that expires when the RPC is freed.
std::weak_ptr<Rpc> StartRpc(StubHost* host, const Method& method, const std::string& peer,
                            grpc::CallbackServerContext* context, FakeStream* stream) {
  absl::StatusOr<RpcRegistry::Registration> registration =
      host->context.rpcs.Admit(peer, method.long_lived);
  REQUIRE(registration.ok());
  const auto rpc =
      std::make_shared<TestRpc>(stream, context, &host->context.rpcs, *std::move(registration));
  rpc->Start(method.make(rpc));
  stream->Bind(rpc.get());
  return rpc;
}

// The result of RunOne, which runs one RPC from its start to OnDone with random events from
// `threads` threads.
struct Outcome {
  std::vector<std::string> violations;
  bool done = false, freed = false;
};
Outcome RunOne(StubHost* host, const Method& method, uint64_t seed, int threads) {
  std::mt19937_64 random(seed);
  std::vector<ByteBuffer> messages;
  for (uint64_t left = random() % 6; left > 0; --left) {
    messages.push_back(MessageOf(method.path, &random));
  }
  grpc::CallbackServerContext context;
  FakeStream stream(std::move(messages));
  const std::weak_ptr<Rpc> watched =
      StartRpc(host, method, absl::StrCat("peer", seed % 3), &context, &stream);

  // Delivers events until the RPC ends. Between events it sometimes calls RpcRegistry::Check with a
  // time up to 100 s in the future, so that time limits expire.
  const auto drive = [&](uint64_t own_seed) {
    std::mt19937_64 own(own_seed);
    const int hang_up_at = static_cast<int>(own() % 60);
    for (int step = 0; stream.Step(&own); ++step) {
      switch (own() % 40) {
        case 0:
          stream.Cancel();
          break;
        case 1:
          host->context.rpcs.Check(MonotonicMicros() + static_cast<int64_t>(own() % 100'000'000));
          break;
        case 2:
          host->health.SetServing(own() % 2 == 0);
          break;
        case 3:
          std::this_thread::yield();
          break;
        default:
          break;
      }
      if (step == hang_up_at) stream.HangUp();
      // A health watch does not end by itself, so cancel it.
      if (step == hang_up_at + 100 && method.long_lived) stream.Cancel();
      if (step > 200) std::this_thread::sleep_for(std::chrono::microseconds(50));
      if (step > 200'000) break;
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(drive, seed * 31 + i);
  drive(seed);
  for (std::thread& other : others) other.join();

  Outcome outcome;
  outcome.violations = stream.violations();
  outcome.done = stream.done();
  outcome.freed = Eventually([&] { return watched.expired(); });
  return outcome;
}

void RunMany(int threads, uint64_t seeds) {
  StubHost host;
  for (const Method& method : host.methods) {
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
      host.control->step_us = seed % 4 == 0 ? 200 : 0;
      const Outcome outcome = RunOne(&host, method, seed, threads);
      INFO(method.path << " seed " << seed);
      CHECK(outcome.violations == std::vector<std::string>());
      REQUIRE(outcome.done);
      REQUIRE(outcome.freed);
    }
    INFO(method.path);
    CHECK(host.context.rpcs.count() == 0);
    CHECK(Eventually([&] { return host.memory.used() == 0; }));
  }
}

TEST_CASE("Every method follows gRPC's rules in random orders of events", "[rpc]") {
  RunMany(/*threads=*/1, /*seeds=*/500);
}

TEST_CASE("Every method follows gRPC's rules when events arrive on two threads", "[rpc]") {
  RunMany(2, 500);
}

const Method& Find(const StubHost& host, const char* name) {
  for (const Method& method : host.methods) {
    if (EndsWith(method.path, name)) return method;
  }
  FAIL("no method " << name);
  return host.methods[0];
}

TEST_CASE("A message that arrives after a stream has failed starts nothing", "[rpc]") {
  StubHost host;
  const Method& method = Find(host, "/EncodeStream");
  v1::EncodeStreamRequest bad;
  bad.set_item_id(1);
  grpc::CallbackServerContext context;
  FakeStream stream({ToBytes(bad), ToBytes(bad), ToBytes(bad)});
  const std::weak_ptr<Rpc> watched = StartRpc(&host, method, "peer", &context, &stream);
  std::mt19937_64 random(1);
  // The first request message fails on the executor while the next read is in flight. After that,
  // this read completes with a message.
  REQUIRE(Eventually([&] {
    stream.Step(&random);
    return !stream.status().ok();
  }));
  while (stream.Step(&random)) {
  }
  CHECK(stream.status().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(stream.violations() == std::vector<std::string>());
  CHECK(watched.expired());
  CHECK(host.memory.used() == 0);
}

// Runs one valid RPC in which one allocation fails: the one after the first `skip` allocations of
// one thread. `where` selects the thread: 0 is this thread, which acts as a gRPC thread; 1, 2 and 3
// are a thread of the executor `preparation`, `completion` or `writer`. Returns whether an
// allocation failed.
bool RunWithFailure(StubHost* host, const Method& method, const ByteBuffer& message, int where,
                    int64_t skip) {
  grpc::CallbackServerContext context;
  FakeStream stream({message});
  const std::weak_ptr<Rpc> watched = StartRpc(host, method, "peer", &context, &stream);
  std::mt19937_64 random(1);
  const int64_t failed_before = FailedAllocations();
  const std::function<void(std::function<void()>)> posts[] = {
      [&](auto task) { host->preparation.Post(std::move(task)); },
      [&](auto task) { host->completion.Post(std::move(task)); },
      [&](auto task) { host->writer.Post(0, std::move(task)); }};
  if (where > 0) {
    posts[where - 1]([skip] { FailAllocations(skip, 1); });
  } else {
    FailAllocations(skip, 1);
  }
  for (int64_t step = 0; stream.Step(&random); ++step) {
    if (step == 50) stream.HangUp();
    if (step > 100) std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (step > 100'000) break;
  }
  FailAllocations(0, 0);
  for (const auto& post : posts) post([] { FailAllocations(0, 0); });
  const bool failed = FailedAllocations() > failed_before;
  INFO(method.path << " thread " << where << " allocation " << skip << ": "
                   << stream.status().error_message() << "; " << stream.state());
  REQUIRE(stream.done());
  CHECK(stream.violations() == std::vector<std::string>());
  if (!failed) CHECK(stream.status().ok());
  if (!stream.status().ok() && stream.status().error_code() != grpc::StatusCode::CANCELLED) {
    CHECK(stream.status().error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  REQUIRE(Eventually([&] { return watched.expired(); }));
  CHECK(Eventually([&] { return host->memory.used() == 0; }));
  return failed;
}

TEST_CASE("A failed allocation anywhere in a call ends only that call", "[rpc]") {
  StubHost host;
  v1::EncodeStreamRequest item;
  item.mutable_input()->set_text("wagner");
  v1::EncodeRequest encode;
  encode.add_inputs()->set_text("wagner");
  encode.add_inputs()->mutable_token_ids()->add_ids(40);
  v1::EncodeStreamRequest ids;
  ids.mutable_input()->mutable_token_ids()->add_ids(40);
  v1::TokenizeRequest tokenize;
  tokenize.set_text("wagner");
  const std::pair<const char*, ByteBuffer> calls[] = {
      {"/Generate", ToBytes(Endless(3))},
      {"/GenerateStream", ToBytes(Endless(3))},
      {"/EncodeStream", ToBytes(item)},
      {"/EncodeStream", ToBytes(ids)},
      {"/Encode", ToBytes(encode)},
      {"/Tokenize", ToBytes(tokenize)},
      {"/GetModelInfo", ToBytes(v1::GetModelInfoRequest())},
      {"/ListModels", ToBytes(v1::ListModelsRequest())},
      {"/ModelInfer", ToBytes(Infer(3, /*stream=*/false))},
      {"/ModelStreamInfer", ToBytes(Infer(3, /*stream=*/true))},
      {"/ModelConfig", ToBytes(kserve::ModelConfigRequest())},
      {"/ModelStatistics", ToBytes(kserve::ModelStatisticsRequest())},
      {"/RepositoryIndex", ToBytes(kserve::RepositoryIndexRequest())},
      {"/ModelReady", ToBytes(kserve::ModelReadyRequest())},
  };
  for (const auto& [name, message] : calls) {
    const Method& method = Find(host, name);
    for (int where = 0; where < 4; ++where) {
      // The loop ends when a run makes at most `skip` allocations, so that none fails. The number
      // of allocations varies with timing; hence three such runs in a row are required.
      int without = 0;
      for (int64_t skip = 0; without < 3; ++skip) {
        without = RunWithFailure(&host, method, message, where, skip) ? 0 : without + 1;
      }
    }
  }
}

}  // namespace
}  // namespace quintet
