#include "server/server.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <mutex>
#include <new>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/clock.h"
#include "google/protobuf/stubs/common.h"  // and logging.h, before version 22
#include "grpcpp/grpcpp.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"
#include "kernels/runtime/cores.h"
#include "server/address.h"
#include "server/admin_server.h"
#include "server/certificate_files.h"
#include "server/credentials.h"
#include "server/gpu_metrics.h"
#include "server/grpc_release.h"
#include "server/health.h"
#include "server/heap_trimmer.h"
#include "server/http_api.h"
#include "server/http_endpoints.h"
#include "server/kserve/methods.h"
#include "server/listener.h"
#include "server/load_reports.h"
#include "server/model_loader.h"
#include "server/process_metrics.h"
#include "server/reflection.h"
#include "server/service.h"
#include "server/transport_limits.h"
#include "server/watchdog.h"
#include "spdlog/spdlog.h"

namespace quintet {
namespace {

constexpr auto kTick = std::chrono::milliseconds(20);
constexpr auto kSpanFlushTime = std::chrono::seconds(2);
constexpr int64_t kWatchIntervalUs = 1'000'000;  // for work that is not done at every tick
constexpr char kServiceName[] = "quintet.v1.Inference";
constexpr int64_t kLoadingBudgetBytes = int64_t{64} << 20;
constexpr int kExitConfiguration = 2, kExitModel = 3, kExitFault = 70;

// The counters of exported and of dropped spans.
class TraceMetrics {
 public:
  // *tracer is null while requests are not traced; the counters are then 0.
  TraceMetrics(const MetricFactory& maker, const std::unique_ptr<Tracer>* tracer)
      : exported_(maker, "spans_exported_total", "Spans that the trace collector has accepted.",
                  Read(tracer, &SpanExporter::exported)),
        queue_full_(maker, kDropped, kDroppedHelp, Read(tracer, &SpanExporter::dropped_queue_full),
                    {{"reason", "queue_full"}}),
        not_accepted_(maker, kDropped, kDroppedHelp,
                      Read(tracer, &SpanExporter::dropped_not_accepted),
                      {{"reason", "not_accepted"}}) {}
  void Collect() {
    for (PolledCounter* counter : {&exported_, &queue_full_, &not_accepted_}) counter->Collect();
  }

 private:
  static constexpr char kDropped[] = "spans_dropped_total",
                        kDroppedHelp[] = "Spans that were not exported, by reason.";
  static std::function<int64_t()> Read(const std::unique_ptr<Tracer>* tracer,
                                       int64_t (SpanExporter::*count)() const) {
    return [=] { return *tracer == nullptr ? 0 : ((*tracer)->exporter().*count)(); };
  }

  PolledCounter exported_, queue_full_, not_accepted_;
};

class ServerProcess {
 public:
  ServerProcess(const ServerOptions& options, ServerSignals* signals)
      : options_(options),
        signals_(signals),
        pool_(options.threads),
        watchdog_(options.stall_timeout_us) {}

  ServeOutcome Run();

 private:
  absl::Status Start();
  absl::Status ListenHttp();
  absl::Status ListenGrpc();
  absl::Status ListenApi();
  // Closes the connections of the HTTP API and waits until their calls have ended.
  void CloseApi();
  absl::Status ListenAdmin();
  absl::Status LoadModels();
  // Reports to health_ whether calls are accepted. Thread-safe.
  void UpdateServing();
  // Re-reads API keys and the configuration of the models.
  void Reload();
  bool Healthy() const;
  // Returns the ordinals of the GPUs that serve models.
  std::set<int> UsedGpus() const;
  // Calls Tick every kTick, and returns when the signal to stop has arrived.
  void Watch();
  // Re-reads certificate files that have changed.
  void RefreshCertificates();
  // Does the periodic work; called every kTick. Does not return if an engine is stalled.
  void Tick();
  void DoPeriodicWork();
  void Drain();
  [[noreturn]] void EndStalled();
  // Sends the spans that are queued, as far as that is possible in kSpanFlushTime.
  void FlushSpans();
  void WaitFor(int64_t limit_us, const std::function<bool()>& done);

  const ServerOptions& options_;
  ServerSignals* const signals_;
  ThreadPool pool_;
  prometheus::Registry registry_;
  MetricFactory make_{kNoModel, /*vllm_names=*/false, &registry_};
  RefusalMetrics refusals_{make_};
  PolledCounter log_lines_dropped_{make_, "log_lines_dropped_total",
                                   "Log lines that were lost because the log was blocked or full.",
                                   options_.log_lines_dropped};
  std::unique_ptr<Tracer> tracer_;  // null: requests are not traced
  TraceMetrics trace_metrics_{make_, &tracer_};
  ProcessMetrics process_metrics_{&registry_};
  GpuMetrics gpu_metrics_{&registry_};
  MetricFactory::Gauges open_calls_ =
      make_.Gauge("open_calls", "Open RPCs of all methods, including idle streams.");
  MetricFactory::Gauges api_connections_ =
      make_.Gauge("http_api_connections", "Open connections of the HTTP API.");
  ApiKeys api_keys_;
  std::unique_ptr<CertificateFiles> certificates_;      // null: plaintext
  std::unique_ptr<TlsContext> tls_;                     // of the HTTP API; null: plaintext
  absl::Status certificates_status_;                    // result of the last refresh
  std::unique_ptr<Executor> preparation_, completion_;  // tokenizes requests, builds responses
  std::unique_ptr<ShardedExecutor> writer_;             // writes chunks of streams
  ModelDirectory directory_;
  const AccessLog access_log_{options_.access_log};
  MemoryBudget memory_{kLoadingBudgetBytes};  // until LoadModels sets the planned limit
  CallContext context_;
  HealthStatus health_;
  std::mutex serving_mutex_;               // held by UpdateServing
  std::atomic<bool> draining_{false};      // Drain has begun
  std::atomic<bool> loaded_{false};        // the models of the start are loaded
  std::atomic<bool> load_failed_{false};   // or one of them could not be loaded
  std::unique_ptr<ModelLoader> loader_;    // uses directory_, memory_ and health_
  std::unique_ptr<LoadMeter> load_meter_;  // uses directory_
  std::unique_ptr<RpcService> service_;
  Watchdog watchdog_;
  std::unique_ptr<HttpEndpoints> http_;  // reads health_ and watchdog_
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<AdminServer> admin_;  // null: off
  std::unique_ptr<HttpApi> api_;        // null: off
  Listener listener_;                   // declared after server_, so that it is destroyed first
  HeapTrimmer heap_trimmer_;
  int64_t last_watch_us_ = 0;
};

// Makes libprotobuf log only its first message about a malformed request in the life of the
// process, because any client can cause such messages without limit. The message names a field but
// does not quote its text. Does nothing since libprotobuf 22, which writes these messages to the
// Abseil log (grpc_log.h).
void LogMalformedRequestsOnce() {
#if GOOGLE_PROTOBUF_VERSION < 4000000
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel, const char*, int, const std::string& message) {
        static std::atomic<bool> said{false};
        if (!said.exchange(true)) {
          spdlog::warn("malformed request message (logged once): {}", message);
        }
      });
#endif
}

absl::Status ServerProcess::Start() {
  QT_RETURN_IF_ERROR(CheckModelNames(options_.models));
  QT_ASSIGN_OR_RETURN(certificates_, OpenCertificates(options_));
  if (!options_.api_key_file.empty()) {
    QT_RETURN_IF_ERROR(api_keys_.Load(options_.api_key_file));
    context_.api_keys = &api_keys_;
  }
  QT_ASSIGN_OR_RETURN(tracer_, MakeTracer(options_.tracing));
  preparation_ = std::make_unique<Executor>(ExecutorOptions{
      .name = "tokenize", .threads = options_.tokenizer_threads, .short_task_threads = 1});
  completion_ = std::make_unique<Executor>(ExecutorOptions{
      .name = "respond", .threads = options_.tokenizer_threads, .short_task_threads = 1});
  writer_ = std::make_unique<ShardedExecutor>("write", std::clamp(AvailableCores() / 4, 1, 4));
  ModelLoader::Options loader;
  loader.directory = &directory_;
  loader.pool = &pool_;
  loader.registry = &registry_;
  loader.memory = &memory_;
  loader.max_message_bytes = options_.max_message_bytes;
  loader.read_models = options_.read_models;
  loader.changed = [this] { UpdateServing(); };
  loader_ = std::make_unique<ModelLoader>(std::move(loader));
  loader_->Configure(options_.models);
  context_.models = &directory_;
  context_.preparation = preparation_.get();
  context_.completion = completion_.get();
  context_.writer = writer_.get();
  context_.memory = &memory_;
  context_.refusals = &refusals_;
  if (options_.access_log != nullptr) context_.access_log = &access_log_;
  context_.tracer = tracer_.get();
  context_.max_message_bytes = options_.max_message_bytes;
  context_.default_timeout_us = options_.default_timeout_us;
  context_.max_timeout_us = options_.max_timeout_us;
  service_ = std::make_unique<RpcService>(&context_, options_.client_timeouts);
  service_->Add(InferenceMethods(&context_));
  service_->Add(HealthMethods(&health_));
  load_meter_ = std::make_unique<LoadMeter>(&directory_);
  context_.load = load_meter_.get();
  service_->Add(LoadReportMethods(load_meter_.get()));
  service_->Add(KserveMethods(&context_, {.live = [this] { return Healthy(); },
                                          .ready = [this] { return health_.serving(); },
                                          .draining = [this] { return draining_.load(); },
                                          .version = options_.models[0].version}));
  QT_RETURN_IF_ERROR(ListenHttp());
  LogGrpcRelease(options_.listen);
  QT_RETURN_IF_ERROR(ListenGrpc());
  QT_RETURN_IF_ERROR(ListenAdmin());
  return ListenApi();
}

absl::Status ServerProcess::ListenApi() {
  if (options_.http_api_listen.empty()) {
    if (!options_.http_api_page) return absl::OkStatus();
    return absl::InvalidArgumentError("--http-api-page: needs --http-api-listen");
  }
  if (certificates_ != nullptr) {
    QT_ASSIGN_OR_RETURN(tls_, TlsContext::Create(certificates_.get()));
  }
  HttpApi::Options api;
  api.listen = options_.http_api_listen;
  api.version = options_.models.front().version;
  api.page = options_.http_api_page;
  api.calls = &context_;
  api.health = &health_;
  api.tls = tls_.get();
  api.timeouts = options_.client_timeouts;
  api.methods = InferenceMethods(&context_);
  QT_ASSIGN_OR_RETURN(api_, HttpApi::Start(std::move(api)));
  spdlog::info("listening on {} (HTTP API{}, port {})", options_.http_api_listen,
               options_.http_api_page ? " and its page" : "", api_->port());
  return absl::OkStatus();
}

void ServerProcess::CloseApi() {
  if (api_ == nullptr) return;
  api_.reset();
  while (context_.rpcs.count() > 0) {
    std::this_thread::sleep_for(kTick);
    Tick();
  }
}

absl::Status ServerProcess::ListenHttp() {
  if (options_.http_listen.empty()) return absl::OkStatus();
  HttpEndpoints::Options http;
  http.listen = options_.http_listen;
  http.collect = [this] {
    loader_->CollectMetrics();
    log_lines_dropped_.Collect();
    trace_metrics_.Collect();
    process_metrics_.Collect();
    gpu_metrics_.Collect(UsedGpus());
    open_calls_.Each(
        [this](auto& gauge) { gauge.Set(static_cast<double>(context_.rpcs.count())); });
    api_connections_.Each([this](auto& gauge) {
      gauge.Set(api_ == nullptr ? 0 : static_cast<double>(api_->connections()));
    });
  };
  http.healthy = [this] { return Healthy(); };
  http.ready = [this] { return health_.serving(); };
  QT_ASSIGN_OR_RETURN(http_, HttpEndpoints::Start(std::move(http), &registry_));
  return absl::OkStatus();
}

absl::Status ServerProcess::ListenGrpc() {
  QT_RETURN_IF_ERROR(listener_.Bind("--listen", options_.listen));
  const absl::StatusOr<Address> address = ParseAddress("--listen", options_.listen);
  if (address.ok() && IsLoopback(*address)) {
    service_->Add(ReflectionMethods(
        {kServiceName, kKserveService, "grpc.health.v1.Health", kLoadReportService}));
  }
  LogMalformedRequestsOnce();
  grpc::EnableDefaultHealthCheckService(false);
  grpc::ServerBuilder builder;
  SetTransportLimits(options_, &builder);
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      MakeCredentials(certificates_.get()));
  builder.RegisterCallbackGenericService(service_.get());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::InternalError("gRPC did not start");
  health_.SetServing(false);
  listener_.Start(std::move(acceptor));
  spdlog::info("listening on {} (gRPC, port {}) and {}", options_.listen, listener_.port(),
               http_ == nullptr
                   ? "no HTTP endpoints"
                   : fmt::format("{} (HTTP, port {})", options_.http_listen, http_->port()));
  return absl::OkStatus();
}

absl::Status ServerProcess::ListenAdmin() {
  if (options_.admin_listen.empty()) return absl::OkStatus();
  QT_ASSIGN_OR_RETURN(
      admin_, AdminServer::Start(options_, context_, loader_.get(), &health_, certificates_.get()));
  spdlog::info("listening on {} (administration, port {})", options_.admin_listen, admin_->port());
  return absl::OkStatus();
}

absl::Status ServerProcess::LoadModels() {
  absl::Status status = loader_->LoadAll();
  load_failed_ = !status.ok();
  return status;
}

void ServerProcess::UpdateServing() {
  // The lock orders threads that write the serving status at the same time: the newest status must
  // be written last.
  std::lock_guard<std::mutex> lock(serving_mutex_);
  const bool serving = loaded_ && !draining_ && directory_.accepts();
  if (serving != health_.serving()) health_.SetServing(serving);
}

bool ServerProcess::Healthy() const { return !load_failed_ && !watchdog_.stalled(); }

std::set<int> ServerProcess::UsedGpus() const {
  std::set<int> ordinals;
  for (const std::shared_ptr<ServedModel>& model : directory_.models()) {
    const std::shared_ptr<ModelHost> host = model->view().host;
    if (host == nullptr) continue;
    for (const int ordinal : host->gpus()) ordinals.insert(ordinal);
  }
  return ordinals;
}

void ServerProcess::EndStalled() {
  draining_ = true;
  UpdateServing();
  spdlog::critical("an engine has made no step for {} s", options_.stall_timeout_us / 1'000'000);
  context_.rpcs.AbandonAll();
  FlushSpans();
  std::this_thread::sleep_for(kFlushTime);
  spdlog::default_logger()->flush();
  std::_Exit(kExitFault);  // the engine thread is stuck, so destructors would block
}

void ServerProcess::FlushSpans() {
  if (tracer_ != nullptr) tracer_->exporter().Shutdown(kSpanFlushTime);
}

void ServerProcess::RefreshCertificates() {
  if (certificates_ == nullptr) return;
  absl::Status status = certificates_->Refresh();
  if (status.ok() && tls_ != nullptr) status = tls_->Refresh();
  if (!status.ok() && status != certificates_status_) {
    spdlog::error("certificate files were not reloaded: {}", std::string(status.message()));
  }
  certificates_status_ = std::move(status);
}

void ServerProcess::Tick() {
  try {
    DoPeriodicWork();
  } catch (const std::bad_alloc&) {
    // Out of memory: the next tick retries.
  }
}

void ServerProcess::DoPeriodicWork() {
  const int64_t paused_us = watchdog_.Tick(loader_->heartbeats());
  if (watchdog_.stalled()) EndStalled();
  const int64_t now = MonotonicMicros();
  directory_.ExpireWaits(now);
  // After the process was suspended, clients get one second before their time limits are checked.
  if (paused_us >= kWatchIntervalUs) last_watch_us_ = now;
  if (now - last_watch_us_ < kWatchIntervalUs) return;
  last_watch_us_ = now;
  load_meter_->Tick();
  context_.rpcs.Check(now);
  if (admin_ != nullptr) admin_->Check(now);
  heap_trimmer_.Tick(now);
  RefreshCertificates();
  if (const int signal = signals_->ignored.exchange(0); signal != 0) {
    spdlog::warn("SIG{} has no meaning here: ignored", sigabbrev_np(signal));
  }
  if (signals_->reload.exchange(false)) Reload();
}

void ServerProcess::Reload() {
  const auto read = [](const char* what, ApiKeys* keys, const std::string& path) {
    const absl::Status status = keys->Load(path);
    if (status.ok()) {
      spdlog::info("{} reloaded", what);
    } else {
      spdlog::error("{} were not reloaded: {}", what, std::string(status.message()));
    }
  };
  if (context_.api_keys != nullptr) read("API keys", &api_keys_, options_.api_key_file);
  if (admin_ != nullptr) {
    read("API keys of administrators", admin_->keys(), options_.admin_api_key_file);
  }
  // If the first models are still loading, the loader handles this request after they are loaded.
  if (options_.read_models != nullptr) loader_->ReloadConfiguration(nullptr);
}

void ServerProcess::Watch() {
  while (!signals_->terminate) {
    std::this_thread::sleep_for(kTick);
    Tick();
  }
}

void ServerProcess::WaitFor(int64_t limit_us, const std::function<bool()>& done) {
  const int64_t end = MonotonicMicros() + limit_us;
  while (MonotonicMicros() < end && !done() && !signals_->skip_drain) {
    std::this_thread::sleep_for(kTick);
    Tick();
  }
}

void ServerProcess::Drain() {
  draining_ = true;
  // From now on the health checks of load balancers fail. Calls are still accepted for
  // drain_delay_us.
  UpdateServing();
  loader_->Drain();
  spdlog::info("draining: {} calls open", context_.rpcs.working());
  WaitFor(options_.drain_delay_us, [] { return false; });
  directory_.Drain();
  context_.rpcs.Drain();
  if (api_ != nullptr) api_->Drain();
  WaitFor(options_.drain_timeout_us,
          [&] { return context_.rpcs.working() == 0 && (api_ == nullptr || !api_->busy()); });
  listener_.Stop();
  // Shutdown cancels RPCs that are still open after drain_timeout_us, or after a signal to skip the
  // drain.
  std::future<void> closed = std::async(std::launch::async, [this] {
    server_->Shutdown(std::chrono::system_clock::now() + kFlushTime);
    server_->Wait();
  });
  while (closed.wait_for(kTick) != std::future_status::ready) Tick();
  CloseApi();
  admin_.reset();
}

ServeOutcome ServerProcess::Run() {
  if (absl::Status status = Start(); !status.ok()) return {kExitConfiguration, status};
  // The server listens while models load: probes see a live process, and calls get UNAVAILABLE with
  // a retry delay.
  std::future<absl::Status> loading = std::async(
      std::launch::async, [this] { return CatchOutOfMemory([this] { return LoadModels(); }); });
  while (loading.wait_for(kTick) != std::future_status::ready) {
    Tick();  // models that are already loaded serve calls meanwhile
    if (!signals_->terminate) continue;
    spdlog::info("stopped while loading");
    spdlog::default_logger()->flush();
    std::_Exit(0);  // the load cannot be interrupted
  }
  if (absl::Status status = loading.get(); !status.ok()) {
    server_->Shutdown(std::chrono::system_clock::now());
    CloseApi();
    return {kExitModel, status};
  }
  loaded_ = true;
  UpdateServing();
  loader_->Start();
  spdlog::info("serving");
  Watch();
  Drain();
  if (!loader_->Stop()) {
    spdlog::info("stopped while a model was loading");
    spdlog::default_logger()->flush();
    std::_Exit(0);  // the load cannot be interrupted
  }
  http_.reset();
  writer_.reset();
  // The executors are destroyed before loader_, which owns the engines that tasks use; preparation_
  // before completion_, because a preparation task may post a completion task.
  preparation_.reset();
  completion_.reset();
  loader_.reset();
  FlushSpans();
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
  } catch (const std::system_error& error) {  // std::thread, if the system has no thread left
    return {kExitModel, absl::ResourceExhaustedError(
                            absl::StrCat("a thread could not be started: ", error.what(),
                                         "; raise ulimit -u, ulimit -v or the cgroup's pids.max"))};
  }
}

}  // namespace quintet
