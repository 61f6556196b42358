#include "engine/engine_group.h"

#include <pthread.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/runtime/cores.h"

namespace quintet {
namespace {

// The longest time that the thread of an idle engine waits before its next heartbeat.
constexpr int64_t kIdleWaitUs = 100'000;

}  // namespace

EngineGroup::EngineGroup(std::vector<Member> members, OnFailure on_failure)
    : on_failure_(std::move(on_failure)) {
  QT_CHECK(!members.empty());
  for (Member& member : members) runners_.push_back(std::make_unique<Runner>(std::move(member)));
  for (size_t i = 0; i < runners_.size(); ++i) {
    runners_[i]->thread = std::thread([this, i] { Run(i); });
    pthread_setname_np(runners_[i]->thread.native_handle(), "engine");
  }
}

void EngineGroup::Stop() {
  stop_ = true;
  for (const auto& runner : runners_) {
    if (runner->thread.joinable()) runner->thread.join();
  }
}

void EngineGroup::Run(size_t index) {
  Runner& runner = *runners_[index];
  RunOnCpus(runner.member.cpus);
  while (!stop_.load(std::memory_order_relaxed)) {
    runner.heartbeats.fetch_add(1, std::memory_order_relaxed);
    if (!runner.engine().Step()) runner.engine().WaitForWork(kIdleWaitUs);
    const absl::Status status = runner.engine().status();
    if (status.ok()) continue;
    while (runner.engine().Step()) {  // ends the requests that it still has
    }
    on_failure_(index, status);
    return;
  }
}

absl::StatusOr<RequestId> EngineGroup::Submit(Request request) {
  const size_t count = runners_.size(), first = turn_.fetch_add(1) % count;
  size_t best = first;
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < count && count > 1; ++i) {
    const size_t at = (first + i) % count;
    if (!runners_[at]->engine().status().ok()) continue;
    const EngineCounters counters = runners_[at]->engine().counters();
    if (counters.waiting + counters.running >= fewest) continue;
    fewest = counters.waiting + counters.running;
    best = at;
  }
  absl::StatusOr<RequestId> id = runners_[best]->engine().Submit(std::move(request));
  if (id.ok()) *id = *id * count + best;
  return id;
}

void EngineGroup::Cancel(RequestId id) {
  runners_[id % runners_.size()]->engine().Cancel(id / runners_.size());
}

std::vector<EngineGroup::State> EngineGroup::states() const {
  std::vector<State> states;
  for (const auto& runner : runners_) {
    states.push_back({runner->engine().status().ok(), runner->engine().counters()});
  }
  return states;
}

EngineCounters EngineGroup::Sum(const std::vector<State>& states) {
  EngineCounters sum;
  for (const State& state : states) {
    for (int64_t EngineCounters::*const field :
         {&EngineCounters::accepted, &EngineCounters::running, &EngineCounters::waiting,
          &EngineCounters::finished, &EngineCounters::cancelled, &EngineCounters::failed,
          &EngineCounters::prompt_tokens, &EngineCounters::generated_tokens, &EngineCounters::steps,
          &EngineCounters::pages_used, &EngineCounters::pages_total,
          &EngineCounters::encoder_cache_queries, &EngineCounters::encoder_cache_hits}) {
      sum.*field += state.counters.*field;
    }
  }
  return sum;
}

std::vector<std::optional<uint64_t>> EngineGroup::heartbeats() const {
  const auto works = [](const auto& runner) { return runner->engine().status().ok(); };
  const bool any = std::any_of(runners_.begin(), runners_.end(), works);
  std::vector<std::optional<uint64_t>> all;
  for (const auto& runner : runners_) {
    const uint64_t heartbeats = runner->heartbeats.load(std::memory_order_relaxed);
    const bool counts = heartbeats > 0 && (works(runner) || !any);
    all.push_back(counts ? std::optional<uint64_t>(heartbeats) : std::nullopt);
  }
  return all;
}

}  // namespace quintet
