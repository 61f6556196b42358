#include "engine/scheduler.h"

#include <algorithm>
#include <span>

#include "kernels/base/check.h"

namespace quintet {
namespace {

constexpr int64_t kWhole = int64_t{1} << 20;

}  // namespace

void Scheduler::Add(const QueuedRequest& request) {
  queues_[static_cast<size_t>(request.priority)].push_back(request);
}

bool Scheduler::Remove(uint64_t id) {
  for (std::deque<QueuedRequest>& queue : queues_) {
    const auto it = std::find_if(queue.begin(), queue.end(),
                                 [id](const QueuedRequest& r) { return r.id == id; });
    if (it == queue.end()) continue;
    queue.erase(it);
    return true;
  }
  return false;
}

int64_t Scheduler::waiting() const {
  size_t waiting = 0;
  for (const std::deque<QueuedRequest>& queue : queues_) waiting += queue.size();
  return static_cast<int64_t>(waiting);
}

int64_t Scheduler::StartTag(int priority) const {
  return std::max(virtual_time_, finish_tags_[priority]);
}

int64_t Scheduler::DominantShare(const QueuedRequest& request) const {
  const auto share = [](int64_t part, int64_t whole) {
    return kWhole * part / std::max<int64_t>(whole, 1);
  };
  return std::max({int64_t{1}, share(request.encode_tokens, capacity_.encode_tokens),
                   share(request.pages, capacity_.pages),
                   share(request.sequences, capacity_.sequences)});
}

bool Scheduler::Overdue(int priority, int64_t now_us) const {
  const std::deque<QueuedRequest>& queue = queues_[priority];
  return !queue.empty() && now_us - queue.front().arrival_us >= kWaitTargetMicros[priority] / 3;
}

int Scheduler::FirstClass(int64_t now_us) const {
  int first = -1;
  for (int priority = kPriorities - 1; priority >= 0; --priority) {
    if (queues_[priority].empty()) continue;
    const bool eligible = first < 0 || Overdue(priority, now_us);
    if (eligible && (first < 0 || StartTag(priority) < StartTag(first))) first = priority;
  }
  return first;
}

const QueuedRequest* Scheduler::First(int64_t now_us) const {
  const int first = FirstClass(now_us);
  return first < 0 ? nullptr : &queues_[first].front();
}

void Scheduler::Admit(int64_t now_us, AdmissionBudget budget,
                      absl::FunctionRef<bool(uint64_t id)> start, std::vector<uint64_t>* admitted) {
  for (int first = FirstClass(now_us); first >= 0; first = FirstClass(now_us)) {
    const QueuedRequest& request = queues_[first].front();
    if (request.encode_tokens > budget.encode_tokens || request.pages > budget.pages ||
        request.sequences > budget.sequences || !start(request.id)) {
      return;
    }
    budget.encode_tokens -= request.encode_tokens;
    budget.pages -= request.pages;
    budget.sequences -= request.sequences;
    admitted->push_back(request.id);
    virtual_time_ = StartTag(first);
    finish_tags_[first] = virtual_time_ + DominantShare(request);
    queues_[first].pop_front();
  }
}

Priority PriorityThrottle::LowestInStep(std::span<const Priority> running,
                                        const PriorityPressure& pressure) const {
  QT_CHECK(!running.empty());
  const auto [lowest, highest] = std::minmax_element(running.begin(), running.end());
  if (skipped_steps_ >= kMaxSkippedSteps || pressure.waiting.value_or(*lowest) > *lowest)
    return *lowest;
  return std::max(*highest, pressure.encoding.value_or(*highest));
}

void SplitPrefillBudget(int64_t budget, std::span<const int64_t> remaining,
                        std::span<int64_t> prefill) {
  QT_CHECK_EQ(remaining.size(), prefill.size());
  for (size_t i = 0; i < remaining.size(); ++i) {
    prefill[i] = std::min(budget, remaining[i]);
    budget -= prefill[i];
  }
}

}  // namespace quintet
