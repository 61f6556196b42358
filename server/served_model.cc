#include "server/served_model.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/clock.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"

namespace quintet {
namespace {

// If a load fails and the model has idle_unload_us > 0, the first call after this time starts
// another load.
constexpr int64_t kRetryUs = 10'000'000;

}  // namespace

ServedModel::ServedModel(HostOptions options, std::shared_ptr<ModelMetrics> metrics)
    : name_(options.name),
      metrics_(std::move(metrics)),
      admission_(options.engine.max_queue_requests, options.engine.max_queue_tokens),
      options_(std::make_shared<const HostOptions>(std::move(options))) {}

ServedModel::View ServedModel::view() const {
  std::lock_guard<std::mutex> lock(mutex_);
  View view;
  view.state = lifecycle_.state();
  view.version = lifecycle_.version();
  view.retired = lifecycle_.retired();
  view.accepts = lifecycle_.accepts() && !draining_;
  view.host = host_;
  view.options = options_;
  view.failure = failure_;
  return view;
}

bool ServedModel::accepts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return lifecycle_.accepts() && !draining_;
}

absl::Status ServedModel::NotServing() const {
  if (draining_) return absl::UnavailableError("the server is shutting down");
  switch (lifecycle_.state()) {
    case ModelState::kLoading:
      return absl::UnavailableError("the model is loading");
    case ModelState::kFailed:
      return absl::UnavailableError("the model could not be loaded");
    case ModelState::kDraining:
      return absl::UnavailableError("the model is being unloaded");
    default:
      return absl::UnavailableError("the model is not loaded");
  }
}

absl::StatusOr<std::shared_ptr<ModelHost>> ServedModel::Acquire() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (draining_) return NotServing();
    if (host_ != nullptr) {
      used_us_ = MonotonicMicros();
      return host_;
    }
    const bool starts = lifecycle_.state() == ModelState::kIdle ||
                        (lifecycle_.state() == ModelState::kFailed && retry_us_ > 0 &&
                         MonotonicMicros() >= retry_us_);
    if (!starts) {
      if (lifecycle_.calls_wait()) return nullptr;
      return NotServing();
    }
    QT_RETURN_IF_ERROR(lifecycle_.Demand());
    demanded_ = true;
    Changed();
  }
  if (on_demand_ != nullptr) on_demand_();
  return nullptr;
}

uint64_t ServedModel::Wait(int64_t deadline_us, OnHost on_host) {
  absl::StatusOr<std::shared_ptr<ModelHost>> host = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (host_ == nullptr && lifecycle_.calls_wait() && !draining_) {
      waiters_.push_back({next_ticket_, deadline_us, std::move(on_host)});
      return next_ticket_++;
    }
    if (host_ != nullptr) {
      host = host_;
    } else {
      host = NotServing();
    }
  }
  on_host(std::move(host));
  return 0;
}

bool ServedModel::StopWaiting(uint64_t ticket) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto waiter = waiters_.begin(); waiter != waiters_.end(); ++waiter) {
    if (waiter->ticket != ticket) continue;
    waiters_.erase(waiter);
    return true;
  }
  return false;
}

void ServedModel::ExpireWaits(int64_t now_us) {
  std::list<Waiter> expired;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto waiter = waiters_.begin(); waiter != waiters_.end();) {
      const auto next = std::next(waiter);
      if (waiter->deadline_us <= now_us) expired.splice(expired.end(), waiters_, waiter);
      waiter = next;
    }
  }
  for (const Waiter& waiter : expired) {
    waiter.on_host(
        WithReason(absl::DeadlineExceededError("the deadline passed before the model was loaded"),
                   kReasonQueued));
  }
}

int64_t ServedModel::waiting() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(waiters_.size());
}

void ServedModel::Changed() {
  metrics_->SetState(lifecycle_.accepts() && !draining_, lifecycle_.retired());
}

std::shared_ptr<ModelHost> ServedModel::Unpublish() {
  metrics_->NotServing();
  Changed();
  return std::move(host_);
}

absl::Status ServedModel::BeginLoad() {
  std::lock_guard<std::mutex> lock(mutex_);
  QT_RETURN_IF_ERROR(lifecycle_.BeginLoad());
  Changed();
  return absl::OkStatus();
}

absl::Status ServedModel::BeginReplace() {
  std::lock_guard<std::mutex> lock(mutex_);
  return lifecycle_.BeginReplace();
}

absl::Status ServedModel::BeginUnload() {
  std::shared_ptr<ModelHost> host;  // released without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  QT_RETURN_IF_ERROR(lifecycle_.BeginUnload());
  retry_us_ = 0;
  failure_.clear();
  if (host_ != nullptr) metrics_->Unloaded();
  host = Unpublish();
  return absl::OkStatus();
}

void ServedModel::BeginDrain() {
  std::shared_ptr<ModelHost> host;
  std::lock_guard<std::mutex> lock(mutex_);
  lifecycle_.BeginDrain();
  host = Unpublish();
}

void ServedModel::Loaded(std::shared_ptr<ModelHost> host, bool on_gpu) {
  std::list<Waiter> waiters;
  std::shared_ptr<ModelHost> before;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    lifecycle_.Loaded();
    host->set_version(lifecycle_.version());
    before = std::exchange(host_, host);
    waiters.swap(waiters_);
    used_us_ = MonotonicMicros();
    retry_us_ = 0;
    failure_.clear();
    admission_.SetLimits(host->options().engine.max_queue_requests,
                         host->options().engine.max_queue_tokens);
    ModelMetrics::LoadedVersion loaded;
    loaded.version = host->version();
    loaded.page_size = host->planned_limits().page_size;
    loaded.pages = host->planned_limits().cache_pages * host->engines();
    loaded.seconds = host->load_seconds();
    if (on_gpu) loaded.gpu = &host->plan();
    metrics_->Loaded(loaded);
    metrics_->SetAdapters(host->adapters().sources(), host->adapter_slots());
    Changed();
  }
  before.reset();
  for (const Waiter& waiter : waiters) waiter.on_host(host);
}

void ServedModel::LoadFailed(const absl::Status& why, int64_t now_us) {
  std::list<Waiter> waiters;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    lifecycle_.LoadFailed();
    failure_ = std::string(why.message());
    if (options_->idle_unload_us > 0 && host_ == nullptr) retry_us_ = now_us + kRetryUs;
    if (host_ == nullptr) waiters.swap(waiters_);
    metrics_->LoadFailed();
    Changed();
  }
  for (const Waiter& waiter : waiters) {
    waiter.on_host(absl::UnavailableError("the model could not be loaded"));
  }
}

void ServedModel::AdaptersChanged(std::vector<AdapterHandle> adapters) {
  std::lock_guard<std::mutex> lock(mutex_);
  host_->SetAdapters(std::move(adapters));
  lifecycle_.Kept();
  failure_.clear();
  metrics_->SetAdapters(host_->adapters().sources(), host_->adapter_slots());
  Changed();
}

void ServedModel::NoteFailure(const absl::Status& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  failure_ = std::string(why.message());
  metrics_->LoadFailed();
}

void ServedModel::Freed() {
  std::lock_guard<std::mutex> lock(mutex_);
  lifecycle_.Freed();
  Changed();
}

void ServedModel::Configure(std::shared_ptr<const HostOptions> options) {
  std::lock_guard<std::mutex> lock(mutex_);
  options_ = std::move(options);
}

bool ServedModel::UnloadIfIdle(int64_t now_us) {
  std::shared_ptr<ModelHost> host;
  std::lock_guard<std::mutex> lock(mutex_);
  if (host_ == nullptr) return false;
  // use_count() > 1: a call or a short-lived view uses this version. The lock excludes new users.
  if (host_.use_count() > 1) used_us_ = now_us;
  const int64_t after_us = host_->options().idle_unload_us;
  if (after_us == 0 || now_us - used_us_ < after_us) return false;
  if (!lifecycle_.GoIdle().ok()) return false;
  metrics_->Unloaded();
  host = Unpublish();
  return true;
}

bool ServedModel::TakeDemand() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(demanded_, false);
}

void ServedModel::Drain() {
  std::lock_guard<std::mutex> lock(mutex_);
  draining_ = true;
  Changed();
}

}  // namespace quintet
