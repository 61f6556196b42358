#include "server/server.h"

#include <chrono>
#include <cstdlib>
#include <future>
#include <new>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/clock.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "kernels/out_of_memory.h"
#include "models/tokenizers/unicode.h"
#include "server/address.h"
#include "server/certificate_files.h"
#include "server/credentials.h"
#include "server/http_endpoints.h"
#include "server/listener.h"
#include "server/server_memory.h"
#include "server/service.h"
#include "server/unreadable.h"
#include "server/wire.h"
#include "spdlog/spdlog.h"

namespace quintet {
namespace {

constexpr auto kTick = std::chrono::milliseconds(20);
constexpr auto kFlush = std::chrono::milliseconds(100);  // for answers to leave the process
constexpr char kServiceName[] = "quintet.v1.Inference";
constexpr int kExitConfiguration = 2, kExitModel = 3, kExitFault = 70;

class ServerProcess {
 public:
  ServerProcess(const ServerOptions& options, ServerSignals* signals)
      : options_(options), signals_(signals), pool_(options.threads) {}

  ServeOutcome Run();

 private:
  absl::Status Start();
  absl::Status ListenHttp();
  absl::Status ListenGrpc();
  absl::Status LoadModels();
  void SetServing(bool serving);
  bool Healthy() const;
  // Until the signal to stop.
  void Watch();
  // Takes up certificate files that have changed.
  void RefreshCertificates();
  // What is looked after while the process waits. Does not return when an engine is stuck.
  void Tick();
  void Drain();
  [[noreturn]] void EndStalled();
  void WaitFor(int64_t limit_us, const std::function<bool()>& done);

  const ServerOptions& options_;
  ServerSignals* const signals_;
  ThreadPool pool_;
  prometheus::Registry registry_;
  MetricMaker make_{kNoModel, /*vllm_names=*/false, &registry_};
  RefusalMetrics refusals_{make_};
  MetricMaker::Gauges open_calls_ =
      make_.Gauge("open_calls", "Calls that have not been answered yet, of all models.");
  ApiKeys api_keys_;
  std::unique_ptr<CertificateFiles> certificates_;  // null: plaintext
  absl::Status certificates_status_;                // when they were last read
  std::unique_ptr<Executor> executor_, writer_;
  std::vector<std::unique_ptr<ModelHost>> hosts_;
  ServerMemoryPlan memory_plan_;  // set by LoadModels, before the first model is ready
  CallContext context_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<HttpEndpoints> http_;
  std::unique_ptr<grpc::Server> server_;
  Listener listener_;  // after server_: it stops first
  std::atomic<bool> serving_{false};
  int64_t last_watch_us_ = 0;
};

absl::Status CheckNames(const std::vector<HostOptions>& models) {
  std::set<std::string> names;
  for (const HostOptions& model : models) {
    if (model.name.empty() || model.name.size() > kMaxModelNameBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--model: a name has 1 to ", kMaxModelNameBytes, " bytes, got ", model.name.size()));
    }
    if (!IsUtf8(model.name)) {
      return absl::InvalidArgumentError(
          "--model: a name must be UTF-8, or no client could read an answer");
    }
    if (!names.insert(model.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--model: the name ", model.name, " is given twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status ServerProcess::Start() {
  if (absl::Status status = CheckNames(options_.models); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<CertificateFiles>> certificates = OpenCertificates(options_);
  if (!certificates.ok()) return certificates.status();
  certificates_ = *std::move(certificates);
  if (!options_.api_key_file.empty()) {
    if (absl::Status status = api_keys_.Load(options_.api_key_file); !status.ok()) return status;
    context_.api_keys = &api_keys_;
  }
  executor_ = std::make_unique<Executor>("tokenize", options_.tokenizer_threads);
  writer_ = std::make_unique<Executor>("write", 1);
  for (const HostOptions& model : options_.models) {
    hosts_.push_back(std::make_unique<ModelHost>(model, &pool_, &registry_));
    context_.hosts.push_back(hosts_.back().get());
  }
  context_.executor = executor_.get();
  context_.writer = writer_.get();
  context_.refusals = &refusals_;
  context_.max_message_bytes = options_.max_message_bytes;
  context_.default_timeout_us = options_.default_timeout_us;
  context_.max_timeout_us = options_.max_timeout_us;
  service_ = std::make_unique<InferenceService>(&context_);
  if (absl::Status status = ListenHttp(); !status.ok()) return status;
  return ListenGrpc();
}

absl::Status ServerProcess::ListenHttp() {
  if (options_.http_listen.empty()) return absl::OkStatus();
  HttpEndpoints::Options http;
  http.listen = options_.http_listen;
  http.collect = [this] {
    for (const auto& host : hosts_) host->CollectMetrics();
    open_calls_.Each(
        [this](auto& gauge) { gauge.Set(static_cast<double>(context_.calls.count())); });
  };
  http.healthy = [this] { return Healthy(); };
  http.ready = [this] { return serving_.load(); };
  absl::StatusOr<std::unique_ptr<HttpEndpoints>> endpoints =
      HttpEndpoints::Start(std::move(http), &registry_);
  if (!endpoints.ok()) return endpoints.status();
  http_ = *std::move(endpoints);
  return absl::OkStatus();
}

absl::Status ServerProcess::ListenGrpc() {
  if (absl::Status status = listener_.Bind(options_.listen); !status.ok()) return status;
  grpc::EnableDefaultHealthCheckService(true);
  const absl::StatusOr<Address> address = ReadAddress("--listen", options_.listen);
  if (address.ok() && IsLoopback(*address))
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, 600'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                             static_cast<int>(options_.max_timeout_us / 1000));
  builder.SetMaxReceiveMessageSize(static_cast<int>(options_.max_message_bytes));
  ExplainUnreadableMessages(&builder);
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      MakeCredentials(certificates_.get()));
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::InternalError("gRPC did not start");
  SetServing(false);
  listener_.Start(std::move(acceptor));
  spdlog::info("listening on {} (gRPC, port {}) and {} (HTTP)", options_.listen, listener_.port(),
               options_.http_listen.empty() ? "nothing" : options_.http_listen);
  return absl::OkStatus();
}

absl::Status ServerProcess::LoadModels() {
  const auto named = [](const ModelHost& host, const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("model ", host.options().name, ": ",
                                                    host.options().directory, ": ",
                                                    status.message()));
  };
  std::vector<ModelHostMemory> models;
  for (const auto& host : hosts_) {
    const absl::StatusOr<ModelHostMemory> memory = host->Prepare();
    if (!memory.ok()) return named(*host, memory.status());
    models.push_back(*memory);
  }
  absl::StatusOr<ServerMemoryPlan> plan =
      PlanServerMemory(ReadProcessMemory(), models, options_.max_message_bytes);
  if (!plan.ok()) return plan.status();
  spdlog::info("{}", plan->summary);
  memory_plan_ = *std::move(plan);
  for (size_t i = 0; i < hosts_.size(); ++i) {
    const absl::Status status = hosts_[i]->Load(memory_plan_.encoder_cache_bytes[i]);
    if (!status.ok()) return named(*hosts_[i], status);
    spdlog::info("model {} is loaded", hosts_[i]->options().name);
  }
  return absl::OkStatus();
}

void ServerProcess::SetServing(bool serving) {
  serving_ = serving;
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  health->SetServingStatus(serving);
  health->SetServingStatus("", serving);
  health->SetServingStatus(kServiceName, serving);
}

bool ServerProcess::Healthy() const {
  const int64_t now = MonotonicMicros();
  for (const auto& host : hosts_) {
    const ModelHost::State state = host->state();
    const bool running = state == ModelHost::State::kReady || state == ModelHost::State::kDraining;
    if (running && now - host->heartbeat_us() > options_.stall_timeout_us) return false;
    if (state == ModelHost::State::kFailed) return false;
  }
  return true;
}

void ServerProcess::EndStalled() {
  SetServing(false);
  spdlog::critical("an engine has made no step for {} s", options_.stall_timeout_us / 1'000'000);
  context_.calls.AbandonAll();
  std::this_thread::sleep_for(kFlush);
  std::_Exit(kExitFault);  // its thread is stuck: nothing can be unwound
}

void ServerProcess::RefreshCertificates() {
  if (certificates_ == nullptr) return;
  absl::Status status = certificates_->Refresh();
  if (!status.ok() && status != certificates_status_) {
    spdlog::error("certificates not read again: {}", std::string(status.message()));
  }
  certificates_status_ = std::move(status);
}

void ServerProcess::Tick() {
  if (!Healthy()) EndStalled();
  const int64_t now = MonotonicMicros();
  if (now - last_watch_us_ < 1'000'000) return;
  last_watch_us_ = now;
  context_.calls.CancelStuck(now);
  RefreshCertificates();
  if (signals_->reload.exchange(false) && context_.api_keys != nullptr) {
    const absl::Status status = api_keys_.Load(options_.api_key_file);
    if (status.ok()) {
      spdlog::info("API keys read again");
    } else {
      spdlog::error("API keys not read again: {}", std::string(status.message()));
    }
  }
}

void ServerProcess::Watch() {
  while (!signals_->terminate) {
    std::this_thread::sleep_for(kTick);
    Tick();
  }
}

void ServerProcess::WaitFor(int64_t limit_us, const std::function<bool()>& done) {
  const int64_t end = MonotonicMicros() + limit_us;
  while (MonotonicMicros() < end && !done() && !signals_->hurry) {
    std::this_thread::sleep_for(kTick);
    Tick();
  }
}

void ServerProcess::Drain() {
  // Balancers hear of it at once; clients that have not heard are still served for a while.
  SetServing(false);
  spdlog::info("draining: {} calls open", context_.calls.count());
  WaitFor(options_.drain_delay_us, [] { return false; });
  for (const auto& host : hosts_) host->Drain();
  WaitFor(options_.drain_timeout_us, [&] { return context_.calls.count() == 0; });
  listener_.Stop();
  // What is open now is over its time, or waits for nothing (health watches, idle streams).
  std::future<void> closed = std::async(std::launch::async, [this] {
    server_->Shutdown(std::chrono::system_clock::now() + kFlush);
    server_->Wait();
  });
  while (closed.wait_for(kTick) != std::future_status::ready) Tick();
}

ServeOutcome ServerProcess::Run() {
  if (absl::Status status = Start(); !status.ok()) return {kExitConfiguration, status};
  // The listener is up while models load: probes see a process that lives, and callers are told to
  // come again.
  std::future<absl::Status> loading = std::async(std::launch::async, [this] {
    return CatchOutOfMemory([this] { return LoadModels(); });
  });
  while (loading.wait_for(kTick) != std::future_status::ready) {
    if (!signals_->terminate) continue;
    spdlog::info("stopped while loading");
    std::_Exit(0);  // nothing is under way, and the load cannot be called back
  }
  if (absl::Status status = loading.get(); !status.ok()) {
    server_->Shutdown(std::chrono::system_clock::now());
    return {kExitModel, status};
  }
  SetServing(true);
  spdlog::info("serving");
  Watch();
  Drain();
  http_.reset();
  writer_.reset();
  executor_.reset();  // what it still does concerns engines
  hosts_.clear();
  spdlog::info("stopped");
  return {};
}

}  // namespace

ServeOutcome Serve(const ServerOptions& options, ServerSignals* signals) {
  const absl::Status& out_of_memory = OutOfMemory();
  try {
    ServerProcess process(options, signals);
    return process.Run();
  } catch (const std::bad_alloc&) {
    return {kExitModel, out_of_memory};
  } catch (const std::system_error& error) {  // std::thread, where the system has no more
    return {kExitModel, absl::ResourceExhaustedError(absl::StrCat(
                            "a thread could not be started: ", error.what(),
                            "; raise ulimit -u, ulimit -v or the cgroup's pids.max"))};
  }
}

}  // namespace quintet
