#include "tools/load/driver.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/clock.h"
#include "tools/interrupt.h"

namespace quintet {
namespace {

constexpr int64_t kPollUs = 50'000;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

class Driver : public LoadObserver {
 public:
  Driver(const Pacing& pacing, LoadPlan* plan, LoadTarget* target)
      : pacing_(pacing), plan_(plan), target_(target) {}

  LoadRecord Run();
  void OnTokens(uint64_t id, int64_t tokens, int64_t at_us) override;
  void OnEnd(uint64_t id, const RequestEnd& end, int64_t at_us) override;

 private:
  struct Due {
    PlannedRequest request;
    int64_t scheduled_us = 0;
    bool measured = false;
  };
  struct Open {
    RequestOutcome outcome;
    int64_t last_tokens_us = 0, streamed_tokens = 0;
    int64_t wanted_tokens = kNever;
  };
  struct Sendable {
    uint64_t id = 0;
    PlannedRequest request;
  };

  void PaceOpenLoop();
  // Sleeps until the time `at_us` (on the clock of MonotonicMicros). Returns false if interrupted.
  static bool SleepUntil(int64_t at_us);
  void SendNextOfClosedLoop();
  void SendBatchIfIdle();
  static void PadToLongest(std::vector<Sendable>* batch);
  bool Finished();

  // Each function below may be called only by a thread that holds mutex_.
  std::optional<Due> Plan(int64_t scheduled_us, PlannedRequest request);
  Sendable Register(Due due);
  void OpenWindow(int64_t at_us);
  void NothingMoreToPlan();
  void CloseWindow();
  int64_t LastDueUs() const;
  bool InWindow(int64_t now_us) const;

  const Pacing pacing_;
  LoadPlan* const plan_;
  LoadTarget* const target_;

  std::mutex mutex_;
  std::unordered_map<uint64_t, Open> open_;
  std::deque<Due> waiting_;  // static batching: requests that wait for the previous batch
  int64_t planned_ = 0;
  bool all_planned_ = false;
  LoadRecord record_;
};

bool Driver::InWindow(int64_t now_us) const {
  return record_.begin_us > 0 && now_us >= record_.begin_us && now_us <= record_.end_us;
}

int64_t Driver::LastDueUs() const {
  if (pacing_.duration_s <= 0 || record_.begin_us == 0) return kNever;
  return record_.begin_us + static_cast<int64_t>(pacing_.duration_s * 1e6);
}

// Schedules `request` for the time `scheduled_us`. Returns nullopt, and schedules nothing, if all
// requests have already been scheduled, if scheduled_us is after the end of the measurement window,
// or after an interrupt.
std::optional<Driver::Due> Driver::Plan(int64_t scheduled_us, PlannedRequest request) {
  const bool enough = pacing_.requests > 0 && planned_ >= pacing_.warmup + pacing_.requests;
  if (enough || scheduled_us > LastDueUs() || Interrupted()) return std::nullopt;
  Due due;
  due.measured = planned_ >= pacing_.warmup;
  if (due.measured && pacing_.static_batch == 0) OpenWindow(scheduled_us);
  ++planned_;
  due.request = std::move(request);
  due.scheduled_us = scheduled_us;
  return due;
}

Driver::Sendable Driver::Register(Due due) {
  Sendable sendable;
  sendable.id = static_cast<uint64_t>(record_.sent++);
  sendable.request = std::move(due.request);
  Open& open = open_[sendable.id];
  if (sendable.request.output_tokens > 0) open.wanted_tokens = sendable.request.output_tokens;
  RequestOutcome& outcome = open.outcome;
  outcome.measured = due.measured;
  outcome.scheduled_us = due.scheduled_us;
  outcome.sent_us = MonotonicMicros();
  outcome.num_beams = sendable.request.num_beams;
  return sendable;
}

void Driver::OpenWindow(int64_t at_us) {
  if (record_.begin_us > 0) return;
  record_.begin_us = at_us;
  record_.end_us = kNever;
}

void Driver::NothingMoreToPlan() {
  all_planned_ = true;
  CloseWindow();
}

void Driver::CloseWindow() {
  const bool open = record_.begin_us > 0 && record_.end_us == kNever;
  if (open && all_planned_ && waiting_.empty()) record_.end_us = MonotonicMicros();
}

bool Driver::SleepUntil(int64_t at_us) {
  while (!Interrupted()) {
    const int64_t left_us = at_us - MonotonicMicros();
    if (left_us <= 0) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(left_us, kPollUs)));
  }
  return false;
}

void Driver::PaceOpenLoop() {
  const int64_t start_us = MonotonicMicros();
  for (;;) {
    PlannedRequest request = plan_->Next();
    const int64_t scheduled_us = start_us + request.at_us;
    std::optional<Due> due;
    int64_t wake_us;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      wake_us = std::min(scheduled_us, LastDueUs());
      due = Plan(scheduled_us, std::move(request));
    }
    // If the next request is due already, do not send the waiting ones yet: requests that are due
    // at the same time go into the same batch.
    if (wake_us > MonotonicMicros()) SendBatchIfIdle();
    const bool awake = SleepUntil(wake_us);
    std::unique_lock<std::mutex> lock(mutex_);
    if (!due || !awake) break;
    if (pacing_.static_batch > 0) {
      waiting_.push_back(*std::move(due));
      const bool full = static_cast<int64_t>(waiting_.size()) >= pacing_.static_batch;
      lock.unlock();
      if (full) SendBatchIfIdle();
    } else {
      const Sendable sendable = Register(*std::move(due));
      lock.unlock();
      target_->Send(sendable.id, sendable.request);
    }
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    NothingMoreToPlan();
  }
  SendBatchIfIdle();
}

void Driver::PadToLongest(std::vector<Sendable>* batch) {
  size_t input = 0;
  uint32_t output = 0;
  for (const Sendable& sendable : *batch) {
    input = std::max(input, sendable.request.ids.size());
    output = std::max(output, sendable.request.output_tokens);
  }
  for (Sendable& sendable : *batch) {
    std::vector<uint32_t>& ids = sendable.request.ids;
    if (!ids.empty()) ids.resize(input, ids[0]);
    sendable.request.output_tokens = output;
  }
}

void Driver::SendBatchIfIdle() {
  std::vector<Sendable> batch;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!open_.empty()) return;
    while (!waiting_.empty() && static_cast<int64_t>(batch.size()) < pacing_.static_batch) {
      // Open the measurement window when the first measured request is sent. Its scheduled time may
      // be much earlier: under overload, long before the warm-up batches have ended.
      if (waiting_.front().measured) OpenWindow(MonotonicMicros());
      batch.push_back(Register(std::move(waiting_.front())));
      waiting_.pop_front();
    }
    CloseWindow();
  }
  if (pacing_.padded) PadToLongest(&batch);
  for (const Sendable& sendable : batch) target_->Send(sendable.id, sendable.request);
}

void Driver::SendNextOfClosedLoop() {
  Sendable sendable;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (all_planned_) return;
    std::optional<Due> due = Plan(MonotonicMicros(), plan_->Next());
    if (!due) return NothingMoreToPlan();
    sendable = Register(*std::move(due));
  }
  target_->Send(sendable.id, sendable.request);
}

void Driver::OnTokens(uint64_t id, int64_t tokens, int64_t at_us) {
  std::lock_guard<std::mutex> lock(mutex_);
  Open& open = open_.at(id);
  tokens = std::min(tokens, open.wanted_tokens - open.streamed_tokens);
  if (tokens == 0) return;
  if (open.outcome.first_us < 0) {
    open.outcome.first_us = at_us;
  } else if (open.outcome.measured) {
    record_.gaps_ms.push_back(static_cast<double>(at_us - open.last_tokens_us) / 1e3);
  }
  open.last_tokens_us = at_us;
  open.streamed_tokens += tokens;
  if (InWindow(at_us)) record_.window_output_tokens += tokens;
}

void Driver::OnEnd(uint64_t id, const RequestEnd& end, int64_t at_us) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto open = open_.extract(id);
    RequestOutcome& outcome = open.mapped().outcome;
    outcome.done_us = at_us;
    outcome.input_tokens = end.input_tokens;
    outcome.output_tokens = std::min(end.output_tokens, open.mapped().wanted_tokens);
    outcome.code = end.code;
    outcome.reason = end.reason;
    outcome.retry_info = end.retry_info;
    if (outcome.ok() && InWindow(outcome.done_us)) {
      ++record_.window_requests;
      record_.window_input_tokens += end.input_tokens;
      record_.window_output_tokens +=
          std::max<int64_t>(outcome.output_tokens - open.mapped().streamed_tokens, 0);
    }
    record_.outcomes.push_back(std::move(outcome));
  }
  if (pacing_.concurrency > 0) SendNextOfClosedLoop();
  if (pacing_.static_batch > 0) SendBatchIfIdle();
}

bool Driver::Finished() {
  std::lock_guard<std::mutex> lock(mutex_);
  return all_planned_ && open_.empty() && waiting_.empty();
}

LoadRecord Driver::Run() {
  std::thread pacer;
  if (pacing_.concurrency > 0) {
    for (int64_t i = 0; i < pacing_.concurrency; ++i) SendNextOfClosedLoop();
  } else {
    pacer = std::thread([this] { PaceOpenLoop(); });
  }
  while (!Finished()) target_->Poll(kPollUs, this);
  if (pacer.joinable()) pacer.join();
  record_.interrupted = Interrupted();
  return std::move(record_);
}

}  // namespace

LoadRecord RunLoad(const Pacing& pacing, LoadPlan* plan, LoadTarget* target) {
  Driver driver(pacing, plan, target);
  return driver.Run();
}

}  // namespace quintet
