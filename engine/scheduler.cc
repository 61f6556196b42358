#include "engine/scheduler.h"

#include <algorithm>

#include "kernels/check.h"

namespace quintet {

void Scheduler::Add(const QueuedRequest& request) { queue_.push_back(request); }

bool Scheduler::Remove(uint64_t id) {
  const auto it = std::find_if(queue_.begin(), queue_.end(),
                               [id](const QueuedRequest& r) { return r.id == id; });
  if (it == queue_.end()) return false;
  queue_.erase(it);
  return true;
}

int Scheduler::ClassOf(const QueuedRequest& request, int64_t now_us) const {
  const int64_t risen = std::max<int64_t>(0, now_us - request.arrival_us) / age_us_;
  const int highest = static_cast<int>(Priority::kHigh);
  return static_cast<int>(std::min<int64_t>(highest, static_cast<int>(request.priority) + risen));
}

void Scheduler::Admit(int64_t now_us, AdmissionBudget budget, std::vector<uint64_t>* admitted) {
  for (int level = static_cast<int>(Priority::kHigh); level >= 0; --level) {
    bool blocked = false;
    size_t kept = 0;
    for (size_t i = 0; i < queue_.size(); ++i) {
      const QueuedRequest request = queue_[i];
      // Admitting from a class moves entries down, never past a later one: the queue stays sorted
      // by arrival.
      const bool turn = !blocked && ClassOf(request, now_us) == level;
      const bool fits = request.encode_tokens <= budget.encode_tokens &&
                        request.pages <= budget.pages && request.sequences <= budget.sequences;
      if (turn && fits) {
        budget.encode_tokens -= request.encode_tokens;
        budget.pages -= request.pages;
        budget.sequences -= request.sequences;
        admitted->push_back(request.id);
        continue;
      }
      blocked = blocked || turn;
      queue_[kept++] = request;
    }
    queue_.resize(kept);
    if (blocked) return;
  }
}

const QueuedRequest* Scheduler::First(int64_t now_us) const {
  const QueuedRequest* first = nullptr;
  for (const QueuedRequest& request : queue_) {
    if (first == nullptr || ClassOf(request, now_us) > ClassOf(*first, now_us)) first = &request;
  }
  return first;
}

Priority StepTurns::Lowest(absl::Span<const Priority> running, const Urgent& urgent) const {
  QT_CHECK(!running.empty());
  const auto [lowest, highest] = std::minmax_element(running.begin(), running.end());
  if (rests_ >= kLongestRest || urgent.waiting.value_or(*lowest) > *lowest) return *lowest;
  return std::max(*highest, urgent.encoding.value_or(*highest));
}

void SharePrefill(int64_t budget, absl::Span<const int64_t> remaining, absl::Span<int64_t> share) {
  QT_CHECK_EQ(remaining.size(), share.size());
  for (size_t i = 0; i < remaining.size(); ++i) {
    share[i] = std::min(budget, remaining[i]);
    budget -= share[i];
  }
}

}  // namespace quintet
