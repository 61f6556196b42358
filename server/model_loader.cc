#include "server/model_loader.h"

#include <pthread.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/clock.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"
#include "models/tokenizers/unicode.h"
#include "server/errors.h"
#include "server/model_loader_impl.h"
#include "server/proto_conversion.h"
#include "spdlog/spdlog.h"

namespace quintet {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(200);  // for models that have become idle
constexpr char kReasonModelState[] = "MODEL_STATE";

// Calls load(). If load throws, returns an error instead of the exception.
absl::Status Guarded(const std::function<absl::Status()>& load) {
  try {
    return CatchOutOfMemory(load);
  } catch (const std::system_error& error) {  // std::thread, if the system has no thread left
    return absl::ResourceExhaustedError(
        absl::StrCat("a thread could not be started: ", error.what()));
  }
}

bool SameLimits(const HostOptions& a, const HostOptions& b) {
  const auto limits = [](const LimitRequest& request) {
    return std::tie(request.max_running, request.max_batch_tokens, request.cache_bytes,
                    request.max_bytes, request.max_input_tokens);
  };
  return limits(a.limits) == limits(b.limits);
}

}  // namespace

absl::Status ModelLoader::LoadError(const absl::Status& status, const HostOptions& options) {
  constexpr char kReasonLoadFailed[] = "LOAD_FAILED";
  std::vector<std::pair<std::string, std::string>> shorter;
  const auto shorten = [&shorter](const std::string& path, const std::string& shown) {
    if (path.empty()) return;
    shorter.emplace_back(absl::StrCat(path, "/"), "");
    shorter.emplace_back(path, shown);
  };
  const auto file_name = [](const std::string& path) {
    return std::filesystem::path(path).filename().string();
  };
  shorten(options.directory, "model");
  shorten(options.tokenizer, file_name(options.tokenizer));
  for (const AdapterSource& adapter : options.load.adapters) {
    shorten(adapter.path, file_name(adapter.path));
  }
  const std::string message = absl::StrReplaceAll(status.message(), shorter);
  if (absl::IsResourceExhausted(status)) {
    return WithReason(absl::ResourceExhaustedError(message), kReasonOutOfMemory);
  }
  return WithReason(absl::FailedPreconditionError(message), kReasonLoadFailed);
}

absl::Status CheckModelNames(const std::vector<HostOptions>& models) {
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

ModelLoader::ModelLoader(Options options)
    : options_(std::move(options)), signal_(std::make_shared<Signal>()) {}

ModelLoader::~ModelLoader() {
  stop_ = true;
  signal_->Notify();
  if (thread_.joinable()) thread_.join();
  operations_.clear();
  options_.directory->Set({});  // releases the versions that serve
}

std::shared_ptr<ServedModel> ModelLoader::MakeModel(const HostOptions& options) {
  std::shared_ptr<ModelMetrics> metrics = metrics_[options.name].lock();
  if (metrics == nullptr) {
    metrics = std::make_shared<ModelMetrics>(
        ModelMetrics::Options{options.name, options.vllm_metrics, options.version},
        options_.registry);
    metrics_[options.name] = metrics;
  }
  auto model = std::make_shared<ServedModel>(options, std::move(metrics));
  model->set_on_demand([signal = signal_] { signal->Notify(); });
  return model;
}

void ModelLoader::Configure(const std::vector<HostOptions>& models) {
  ModelDirectory::Models made;
  for (const HostOptions& options : models) {
    made.push_back(MakeModel(options));
    (void)made.back()->BeginLoad();  // the state of a new model allows it
  }
  options_.directory->Set(std::move(made));
}

absl::Status ModelLoader::LoadAll() {
  std::vector<std::unique_ptr<Version>> versions;
  std::vector<ModelHostMemory> memory;
  const auto failed = [](const Version& version, const absl::Status& status) {
    version.model->LoadFailed(status, MonotonicMicros());
    const HostOptions& options = version.host->options();
    return absl::Status(status.code(), absl::StrCat("model ", options.name, ": ", options.directory,
                                                    ": ", status.message()));
  };
  // All models are prepared before any is loaded: the plan divides the free memory among them.
  for (const auto& model : options_.directory->models()) {
    auto version = std::make_unique<Version>();
    version->model = model;
    version->host =
        std::make_unique<ModelHost>(*model->view().options, options_.pool, model->metrics());
    const absl::StatusOr<ModelHostMemory> needed = version->host->Prepare();
    if (!needed.ok()) return failed(*version, needed.status());
    version->memory = *needed;
    memory.push_back(*needed);
    versions.push_back(std::move(version));
  }
  at_start_ = ReadProcessMemory();
  QT_ASSIGN_OR_RETURN(const ServerMemoryPlan plan,
                      PlanServerMemory(at_start_, memory, options_.max_message_bytes));
  spdlog::info("{}", plan.summary);
  options_.memory->SetLimit(plan.request_budget_bytes);
  for (size_t i = 0; i < versions.size(); ++i) {
    versions[i]->memory.encoder_cache_bytes = plan.encoder_cache_bytes[i];
    const absl::Status status = versions[i]->host->Load(plan.encoder_cache_bytes[i]);
    if (!status.ok()) return failed(*versions[i], status);
    Publish(std::move(versions[i]));
  }
  return absl::OkStatus();
}

void ModelLoader::Start() {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "models");
}

bool ModelLoader::Stop() {
  stop_ = true;
  signal_->Notify();
  if (!thread_.joinable()) return true;
  while (!ended_) {
    if (loading_) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  thread_.join();
  return true;
}

void ModelLoader::Drain() {
  std::lock_guard<std::mutex> lock(mutex_);
  draining_ = true;
}

void ModelLoader::Run() {
  while (!stop_) {
    bool progress = false;
    try {
      FreeUnused();
      progress = AdvanceOperations();
      StartDemanded();
      UnloadIdle();
      ApplyConfiguration();
    } catch (const std::bad_alloc&) {
      // Out of memory: the next round tries again.
    }
    if (!progress) signal_->Wait(kPoll);
  }
  ended_ = true;
}

absl::Status ModelLoader::BeginEvent(Wish wish, ServedModel* model, Operation* operation) {
  const ServedModel::View view = model->view();
  operation->options = view.options;
  if (wish == Wish::kUnload) {
    operation->kind = Operation::Kind::kUnload;
    return model->BeginUnload();
  }
  if (view.state != ModelState::kServing) return model->BeginLoad();
  operation->kind =
      wish == Wish::kChangeAdapters ? Operation::Kind::kChangeAdapters : Operation::Kind::kReplace;
  operation->previous = std::make_shared<const HostOptions>(view.host->current_options());
  return model->BeginReplace();
}

absl::StatusOr<std::shared_ptr<ServedModel>> ModelLoader::TryBegin(Wish wish,
                                                                   const std::string& name,
                                                                   ModelDone* done) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (draining_) return absl::UnavailableError("the server is shutting down");
  QT_ASSIGN_OR_RETURN(const std::shared_ptr<ServedModel> model, options_.directory->Find(name));
  const ModelState state = model->view().state;
  const bool done_already = (wish == Wish::kLoad && state == ModelState::kServing) ||
                            (wish == Wish::kUnload && state == ModelState::kUnloaded);
  if (done_already) return model;
  auto operation = std::make_unique<Operation>();
  operation->model = model;
  if (absl::Status status = BeginEvent(wish, model.get(), operation.get()); !status.ok()) {
    return WithReason(std::move(status), kReasonModelState);
  }
  operation->done = std::move(*done);
  *done = nullptr;
  operations_.push_back(std::move(operation));
  return model;
}

void ModelLoader::Begin(Wish wish, const std::string& name, ModelDone done) {
  const absl::StatusOr<std::shared_ptr<ServedModel>> begun = TryBegin(wish, name, &done);
  if (done == nullptr) {  // in progress
    options_.changed();
    signal_->Notify();
    return;
  }
  ModelOutcome outcome;
  outcome.status = begun.status();
  if (begun.ok()) {
    const ServedModel::View view = (*begun)->view();
    outcome.version = view.version;
    if (view.host != nullptr) outcome.load_seconds = view.host->load_seconds();
  }
  done(outcome);
}

void ModelLoader::Load(const std::string& model, ModelDone done) {
  Begin(Wish::kLoad, model, std::move(done));
}

void ModelLoader::Reload(const std::string& model, ModelDone done) {
  Begin(Wish::kReload, model, std::move(done));
}

void ModelLoader::Unload(const std::string& model, ModelDone done) {
  Begin(Wish::kUnload, model, std::move(done));
}

void ModelLoader::Push(std::unique_ptr<Operation> operation) {
  std::lock_guard<std::mutex> lock(mutex_);
  operations_.push_back(std::move(operation));
}

bool ModelLoader::AdvanceOperations() {
  std::vector<Operation*> operations;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& operation : operations_) operations.push_back(operation.get());
  }
  bool progress = false;
  for (Operation* operation : operations) {
    if (stop_) return false;
    if (operation->blocked_at == freed_) continue;
    const ModelState before = operation->model->view().state;
    const bool restoring = operation->restoring;
    std::optional<ModelOutcome> outcome = Advance(operation);
    if (operation->model->view().state != before || operation->restoring != restoring) {
      progress = true;
    }
    if (!outcome.has_value()) continue;
    progress = true;
    Finish(operation, *std::move(outcome));
  }
  return progress;
}

std::optional<ModelOutcome> ModelLoader::Advance(Operation* operation) {
  ServedModel& model = *operation->model;
  ModelOutcome outcome;
  switch (operation->kind) {
    case Operation::Kind::kUnload:
      if (model.view().state == ModelState::kDraining) return std::nullopt;
      return outcome;
    case Operation::Kind::kReplace:
      return AdvanceReplacement(operation);
    case Operation::Kind::kChangeAdapters:
      return AdvanceAdapters(operation);
    case Operation::Kind::kLoad:
      break;
  }
  bool alone = true;
  outcome.status = LoadVersion(*operation, nullptr, &alone);
  if (IsBlocked(outcome.status, operation)) return std::nullopt;
  if (!outcome.status.ok()) model.LoadFailed(outcome.status, MonotonicMicros());
  return outcome;
}

std::optional<ModelOutcome> ModelLoader::AdvanceReplacement(Operation* operation) {
  ServedModel& model = *operation->model;
  const ServedModel::View view = model.view();
  if (view.state == ModelState::kDraining) return std::nullopt;
  if (view.state == ModelState::kLoading) return AdvanceAfterDrain(operation);
  ModelOutcome outcome;
  bool alone = false;
  outcome.status = LoadVersion(*operation, view.host.get(), &alone);
  if (outcome.status.ok()) return outcome;
  if (!absl::IsResourceExhausted(outcome.status) || !alone) {
    model.LoadFailed(outcome.status, MonotonicMicros());
    return outcome;
  }
  if (IsBlocked(outcome.status, operation)) return std::nullopt;
  spdlog::warn(
      "model {}: version {} is drained before its replacement is loaded, calls wait meanwhile: {}",
      model.name(), view.version, std::string(outcome.status.message()));
  operation->drained = true;
  model.BeginDrain();
  return std::nullopt;
}

std::optional<ModelOutcome> ModelLoader::AdvanceAfterDrain(Operation* operation) {
  ServedModel& model = *operation->model;
  ModelOutcome outcome;
  bool alone = true;
  const absl::Status status = LoadVersion(*operation, nullptr, &alone);
  if (status.ok()) {
    outcome.status = operation->failure;
    if (operation->restoring) model.NoteFailure(operation->failure);
    return outcome;
  }
  if (IsBlocked(status, operation)) return std::nullopt;
  if (!operation->restoring) {
    spdlog::error("model {}: could not be loaded; the configuration before is loaded again: {}",
                  model.name(), std::string(status.message()));
    operation->failure = status;
    operation->restoring = true;
    operation->options = operation->previous;
    return std::nullopt;
  }
  model.LoadFailed(operation->failure, MonotonicMicros());
  outcome.status = operation->failure;
  return outcome;
}

void ModelLoader::Finish(Operation* operation, ModelOutcome outcome) {
  const std::shared_ptr<ServedModel> model = operation->model;
  std::unique_ptr<Operation> finished;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::find_if(operations_.begin(), operations_.end(),
                                    [&](const auto& other) { return other.get() == operation; });
    finished = std::move(*found);
    operations_.erase(found);
  }
  const ServedModel::View view = model->view();
  outcome.version = view.version;
  outcome.drained_first = finished->drained;
  if (view.host != nullptr) outcome.load_seconds = view.host->load_seconds();
  if (!outcome.status.ok()) {
    spdlog::error("model {}: was not loaded: {}; {}", model->name(),
                  std::string(outcome.status.message()),
                  view.version == 0 ? "no version serves"
                                    : absl::StrCat("version ", view.version, " serves"));
  } else if (finished->kind == Operation::Kind::kUnload) {
    spdlog::info("model {}: unloaded", model->name());
  }
  Deferred deferred;
  bool has_deferred = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = deferred_.find(model->name()); found != deferred_.end()) {
      deferred = std::move(found->second);
      has_deferred = true;
      deferred_.erase(found);
    }
  }
  const bool comes_back = has_deferred && deferred.options != nullptr;
  if (finished->remove && !comes_back) Remove(model.get());
  options_.changed();
  if (finished->done != nullptr) finished->done(outcome);
  if (has_deferred) {
    ApplyModel(model, deferred.options, deferred.configuration, /*load=*/finished->remove);
  }
}

absl::Status ModelLoader::LoadVersion(const Operation& operation, const ModelHost* beside,
                                      bool* alone) {
  loading_ = true;
  HostOptions options = *operation.options;
  options.limits.models = ModelsToShareWith(*operation.model, options);
  auto version = std::make_unique<Version>();
  version->model = operation.model;
  *alone = true;
  const absl::Status status = Guarded([&]() -> absl::Status {
    version->host = std::make_unique<ModelHost>(options, options_.pool, operation.model->metrics());
    QT_ASSIGN_OR_RETURN(version->memory, version->host->Prepare());
    absl::StatusOr<ServerMemoryPlan> plan =
        beside == nullptr ? Plan(&version->memory, nullptr) : PlanBeside(*version, *beside);
    if (!plan.ok()) {
      *alone = beside == nullptr || Plan(&version->memory, beside).ok();
      return plan.status();
    }
    if (beside == nullptr) options_.memory->SetLimit(plan->request_budget_bytes);
    version->memory.encoder_cache_bytes = plan->encoder_cache_bytes.back();
    return version->host->Load(plan->encoder_cache_bytes.back());
  });
  if (status.ok()) {
    Publish(std::move(version));
  }
  loading_ = false;
  return status.ok() ? status : LoadError(status, options);
}

void ModelLoader::Publish(std::unique_ptr<Version> version) {
  auto unused = std::make_shared<std::atomic<bool>>(false);
  version->unused = unused;
  const std::shared_ptr<ModelHost> host(version->host.get(),
                                        [unused, signal = signal_](ModelHost*) {
                                          unused->store(true, std::memory_order_release);
                                          signal->Notify();
                                        });
  const std::shared_ptr<ServedModel> model = version->model;
  const bool on_gpu = DeviceOrdinal(host->options().placement) >= 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto free = std::find(versions_.begin(), versions_.end(), nullptr);
    if (free == versions_.end()) {
      versions_.push_back(std::move(version));
    } else {
      *free = std::move(version);
    }
  }
  model->Loaded(host, on_gpu);
  spdlog::info("model {}: version {} serves, {}", model->name(), host->version(), host->Summary());
}

absl::StatusOr<ServerMemoryPlan> ModelLoader::Plan(const ModelHostMemory* next,
                                                   const ModelHost* without) const {
  std::vector<ModelHostMemory> models;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& version : versions_) {
      if (version == nullptr || version->host.get() == without) continue;
      ModelHostMemory loaded = version->memory;
      loaded.loading_bytes = 0;
      loaded.cache_bytes += std::exchange(loaded.encoder_cache_bytes, 0);  // it keeps its size
      models.push_back(loaded);
    }
  }
  if (next != nullptr) models.push_back(*next);
  ProcessMemory memory = ReadProcessMemory();
  memory.resident.used_bytes = at_start_.resident.used_bytes;
  memory.address_space.used_bytes = at_start_.address_space.used_bytes;
  return PlanServerMemory(memory, models, options_.max_message_bytes);
}

absl::StatusOr<ServerMemoryPlan> ModelLoader::PlanBeside(const Version& next,
                                                         const ModelHost& serving) const {
  QT_ASSIGN_OR_RETURN(ServerMemoryPlan plan, Plan(&next.memory, nullptr));
  // The memory budget of calls must not shrink: calls in progress hold parts of it, and calls whose
  // size was allowed before must stay allowed.
  int64_t cache_bytes = next.memory.encoder_cache_bytes;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& version : versions_) {
      if (version == nullptr || version->host.get() != &serving) continue;
      cache_bytes = std::min(cache_bytes, version->memory.encoder_cache_bytes);
    }
  }
  if (plan.request_budget_bytes < options_.memory->limit() ||
      plan.encoder_cache_bytes.back() < cache_bytes) {
    return absl::ResourceExhaustedError(
        "the replacement does not fit into memory beside the version that serves");
  }
  const ModelLimits& now = serving.planned_limits();
  const ModelLimits& then = next.host->planned_limits();
  const bool less = then.cache_pages < now.cache_pages ||
                    then.max_step_sequences < now.max_step_sequences ||
                    then.max_encode_tokens < now.max_encode_tokens;
  if (less && SameLimits(next.host->options(), serving.options())) {
    return absl::ResourceExhaustedError(
        "beside the version that serves there is memory only for lower limits");
  }
  return plan;
}

int64_t ModelLoader::ModelsToShareWith(const ServedModel& model, const HostOptions& options) const {
  if (DeviceOrdinal(options.placement) < 0) return options.limits.models;
  // The free memory of the GPU must be shared with idle models, which will be loaded again.
  int64_t models = 1;
  for (const auto& other : options_.directory->models()) {
    const ServedModel::View view = other->view();
    if (other.get() != &model && view.state == ModelState::kIdle &&
        ShareDevice(view.options->placement, options.placement)) {
      ++models;
    }
  }
  return models;
}

void ModelLoader::FreeUnused() {
  std::vector<std::unique_ptr<Version>> unused;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    unused.reserve(versions_.size());
    for (auto& version : versions_) {
      if (version == nullptr || !version->unused->load(std::memory_order_acquire)) continue;
      unused.push_back(std::move(version));
    }
  }
  if (unused.empty()) return;
  for (std::unique_ptr<Version>& version : unused) {
    const std::shared_ptr<ServedModel> model = version->model;
    const uint64_t number = version->host->version();
    version.reset();
    ++freed_;
    model->Freed();
    spdlog::info("model {}: version {} freed", model->name(), number);
  }
  const absl::StatusOr<ServerMemoryPlan> plan = Plan(nullptr, nullptr);
  if (plan.ok()) options_.memory->SetLimit(plan->request_budget_bytes);
  options_.changed();
}

bool ModelLoader::IsBlocked(const absl::Status& status, Operation* operation) const {
  if (!absl::IsResourceExhausted(status)) return false;
  const ModelDirectory::Models models = options_.directory->models();
  if (std::none_of(models.begin(), models.end(),
                   [](const auto& model) { return model->view().retired > 0; })) {
    return false;
  }
  if (operation->blocked_at < 0) {
    spdlog::info("model {}: waits until versions that still run calls are freed: {}",
                 operation->model->name(), std::string(status.message()));
  }
  operation->blocked_at = freed_;
  return true;
}

void ModelLoader::StartDemanded() {
  for (const auto& model : options_.directory->models()) {
    if (!model->TakeDemand()) continue;
    auto operation = std::make_unique<Operation>();
    operation->model = model;
    operation->options = model->view().options;
    spdlog::info("model {}: a call loads it", model->name());
    Push(std::move(operation));
    signal_->Notify();
  }
}

void ModelLoader::UnloadIdle() {
  const int64_t now_us = MonotonicMicros();
  for (const auto& model : options_.directory->models()) {
    if (!model->UnloadIfIdle(now_us)) continue;
    spdlog::info("model {}: idle, unloaded; the next call loads it again", model->name());
    options_.changed();
  }
}

std::vector<std::optional<uint64_t>> ModelLoader::heartbeats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::optional<uint64_t>> heartbeats;
  for (const auto& version : versions_) {
    std::vector<std::optional<uint64_t>> own = {std::nullopt};
    if (version != nullptr) own = version->host->heartbeats();
    heartbeats.insert(heartbeats.end(), own.begin(), own.end());
  }
  return heartbeats;
}

void ModelLoader::CollectMetrics() const {
  std::map<const ServedModel*, EngineCounters> sums;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& version : versions_) {
      if (version != nullptr) version->host->CollectMetrics(&sums[version->model.get()]);
    }
  }
  for (const auto& model : options_.directory->models()) {
    model->metrics()->SetGauges(sums[model.get()], model->admission().requests(),
                                model->admission().tokens());
  }
}

}  // namespace quintet
