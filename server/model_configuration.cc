// The part of ModelLoader that applies a new configuration to the models of a running server.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/clock.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"
#include "models/adapter_layout.h"
#include "server/errors.h"
#include "server/model_loader.h"
#include "server/model_loader_impl.h"
#include "spdlog/spdlog.h"

namespace quintet {
namespace {

using Action = ModelChange::Action;

const char* ActionName(Action action) {
  switch (action) {
    case Action::kUnchanged:
      return "unchanged";
    case Action::kConfigured:
      return "configured";
    case Action::kLoaded:
      return "loaded";
    case Action::kReplaced:
      return "replaced";
    case Action::kUnloaded:
      return "unloaded";
    case Action::kAdaptersChanged:
      return "adapters changed";
  }
  return "";
}

// Returns the action on a model. Null `options`: the new configuration does not have the model.
Action ActionOf(const ServedModel::View& view, const HostOptions* options, bool load) {
  if (options == nullptr) return Action::kUnloaded;
  const std::vector<AdapterSource>& adapters = options->load.adapters;
  if (view.state == ModelState::kServing) {
    if (!SameSettings(*options, view.host->options())) return Action::kReplaced;
    return view.host->adapters().HasExactly(adapters) ? Action::kUnchanged
                                                      : Action::kAdaptersChanged;
  }
  const bool same =
      SameSettings(*options, *view.options) && adapters == view.options->load.adapters;
  if (view.state == ModelState::kFailed || load) return Action::kLoaded;
  return same ? Action::kUnchanged : Action::kConfigured;
}

// Writes to the log what a new configuration has changed.
void LogChanges(const std::vector<ModelChange>& changes) {
  std::string text;
  for (const ModelChange& change : changes) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", change.model, " ",
                    change.outcome.status.ok() ? ActionName(change.action) : "failed");
  }
  spdlog::info("configuration reloaded: {}", text);
}

}  // namespace

void ModelLoader::Configuration::Changed(const std::string& model, ModelChange::Action action,
                                         ModelOutcome outcome) {
  for (ModelChange& change : changes) {
    if (change.model != model) continue;
    change.action = action;
    change.outcome = std::move(outcome);
  }
  if (--pending > 0) return;
  LogChanges(changes);
  if (done != nullptr) done(changes);
}

void ModelLoader::ReloadConfiguration(ConfigurationDone done) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!draining_) {
      reloads_.push_back(std::move(done));
      done = nullptr;
    }
  }
  if (done != nullptr) return done(absl::UnavailableError("the server is shutting down"));
  signal_->Notify();
}

void ModelLoader::ApplyConfiguration() {
  std::vector<ConfigurationDone> requests;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    requests.swap(reloads_);
  }
  if (requests.empty()) return;
  // The configuration is read once for all waiting ReloadConfiguration requests.
  const auto done = [requests](const absl::StatusOr<std::vector<ModelChange>>& changes) {
    for (const ConfigurationDone& request : requests) {
      if (request != nullptr) request(changes);
    }
  };
  absl::StatusOr<std::vector<HostOptions>> models =
      absl::FailedPreconditionError("this server has no configuration to read again");
  if (options_.read_models != nullptr) models = options_.read_models();
  absl::Status status = models.status();
  if (status.ok()) status = CheckModelNames(*models);
  if (status.ok() && models->empty()) {
    status = absl::InvalidArgumentError("the configuration names no model");
  }
  if (!status.ok()) {
    spdlog::error("the configuration was not reloaded: {}", std::string(status.message()));
    return done(status);
  }
  auto configuration = std::make_shared<Configuration>();
  configuration->done = done;
  ApplyModels(*models, configuration);
}

void ModelLoader::ApplyModels(const std::vector<HostOptions>& models,
                              const std::shared_ptr<Configuration>& configuration) {
  struct Step {
    std::shared_ptr<ServedModel> model;
    std::shared_ptr<const HostOptions> options;  // null: removed
    bool is_new;
  };
  std::vector<Step> steps;
  ModelDirectory::Models order;
  const ModelDirectory::Models before = options_.directory->models();
  for (const HostOptions& options : models) {
    const auto known = std::find_if(before.begin(), before.end(), [&](const auto& model) {
      return model->name() == options.name;
    });
    const bool is_new = known == before.end();
    order.push_back(is_new ? MakeModel(options) : *known);
    steps.push_back({order.back(), std::make_shared<const HostOptions>(options), is_new});
  }
  for (const auto& model : before) {
    if (std::find(order.begin(), order.end(), model) != order.end()) continue;
    order.push_back(model);  // until it is unloaded
    steps.push_back({model, nullptr, false});
  }
  for (const Step& step : steps) configuration->Add(step.model->name());
  {
    std::lock_guard<std::mutex> lock(mutex_);  // no operation begins meanwhile
    options_.directory->Set(std::move(order));
  }
  for (Step& step : steps) {
    ApplyModel(step.model, std::move(step.options), configuration, step.is_new);
  }
  options_.changed();
  signal_->Notify();
}

void ModelLoader::ApplyModel(const std::shared_ptr<ServedModel>& model,
                             std::shared_ptr<const HostOptions> options,
                             const std::shared_ptr<Configuration>& configuration, bool load) {
  Action action = Action::kUnchanged;
  std::shared_ptr<Configuration> superseded;
  bool begun = true;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const ServedModel::View view = model->view();
    action = ActionOf(view, options.get(), load);
    absl::StatusOr<bool> began = BeginChange(model, action, options, configuration);
    if (began.ok()) {
      begun = *began;
      if (options != nullptr) model->Configure(options);
    } else {  // an operation is in progress: Finish applies the options
      Deferred& deferred = deferred_[model->name()];
      superseded = std::exchange(deferred.configuration, configuration);
      deferred.options = options;
    }
  }
  if (superseded != nullptr) {
    ModelOutcome outcome;
    outcome.status = absl::AbortedError("a newer configuration has replaced this one");
    superseded->Changed(model->name(), Action::kUnchanged, outcome);
  }
  if (begun) return;
  if (options == nullptr) Remove(model.get());
  ModelOutcome outcome;
  outcome.version = model->view().version;
  configuration->Changed(model->name(), action, outcome);
}

absl::StatusOr<bool> ModelLoader::BeginChange(const std::shared_ptr<ServedModel>& model,
                                              Action action,
                                              const std::shared_ptr<const HostOptions>& options,
                                              const std::shared_ptr<Configuration>& configuration) {
  const ModelState state = model->view().state;
  if (state == ModelState::kLoading || state == ModelState::kReplacing ||
      state == ModelState::kDraining) {
    return absl::AbortedError("busy");
  }
  if (action == Action::kUnchanged || action == Action::kConfigured) return false;
  if (action == Action::kUnloaded && state == ModelState::kUnloaded) return false;
  auto operation = std::make_unique<Operation>();
  operation->model = model;
  operation->remove = options == nullptr;
  const uint64_t before = model->view().version;
  operation->done = [configuration, action, before,
                     name = model->name()](const ModelOutcome& outcome) {
    // If the new adapters need more memory than the version has for them, a new version replaces it
    // (AdvanceAdapters).
    const bool replaced = action == Action::kAdaptersChanged && outcome.version != before;
    configuration->Changed(name, replaced ? Action::kReplaced : action, outcome);
  };
  const Wish wish = options == nullptr                   ? Wish::kUnload
                    : action == Action::kAdaptersChanged ? Wish::kChangeAdapters
                                                         : Wish::kReload;
  QT_RETURN_IF_ERROR(BeginEvent(wish, model.get(), operation.get()));
  if (options != nullptr) operation->options = options;
  operations_.push_back(std::move(operation));
  return true;
}

std::optional<ModelOutcome> ModelLoader::AdvanceAdapters(Operation* operation) {
  ServedModel& model = *operation->model;
  const std::shared_ptr<ModelHost> host = model.view().host;
  const std::vector<AdapterSource>& sources = operation->options->load.adapters;
  std::vector<AdapterHandle> adapters;
  ModelOutcome outcome;
  absl::Status status = CatchOutOfMemory([&]() -> absl::Status {
    QT_ASSIGN_OR_RETURN(adapters, host->ReadAdapters(sources));
    return PlanAdapters(*host, adapters);
  });
  if (absl::IsFailedPrecondition(status)) {
    spdlog::info("model {}: is loaded again to make room for its adapters: {}", model.name(),
                 std::string(status.message()));
    operation->kind = Operation::Kind::kReplace;
    return AdvanceReplacement(operation);
  }
  if (status.ok()) {
    model.AdaptersChanged(std::move(adapters));
    spdlog::info("model {}: has {} adapters", model.name(), sources.size());
  } else {
    outcome.status = LoadError(status, *operation->options);
    model.LoadFailed(outcome.status, MonotonicMicros());
  }
  return outcome;
}

absl::Status ModelLoader::PlanAdapters(const ModelHost& host,
                                       std::span<const AdapterHandle> adapters) {
  int64_t bytes = -host.adapters().bytes();
  for (const AdapterHandle& adapter : adapters) bytes += adapter->size.bytes;
  const auto add = [&](int64_t added) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& version : versions_) {
      if (version != nullptr && version->host.get() == &host) {
        version->memory.weights_bytes += added;
      }
    }
  };
  add(bytes);
  const absl::StatusOr<ServerMemoryPlan> plan = Plan(nullptr, nullptr);
  absl::Status status = plan.status();
  if (status.ok() && bytes > 0 && plan->request_budget_bytes < options_.memory->limit()) {
    status = absl::ResourceExhaustedError("the adapters do not fit into memory");
  }
  if (!status.ok()) add(-bytes);
  return status;
}

void ModelLoader::Remove(const ServedModel* model) {
  ModelDirectory::Models models = options_.directory->models();
  std::erase_if(models, [&](const auto& other) { return other.get() == model; });
  options_.directory->Set(std::move(models));
  spdlog::info("model {}: removed", model->name());
}

}  // namespace quintet
