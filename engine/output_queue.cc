#include "engine/output_queue.h"

#include <new>

#include "engine/reserve.h"

namespace quintet {
namespace {

void Deliver(Job* job) {
  if (job->ran_out_of_memory()) return;
  try {
    job->generation()->Deliver(job->request.sink.get());
  } catch (const std::bad_alloc&) {
    job->out_of_memory = true;
  }
}

}  // namespace

void OutputQueue::Reserve(size_t jobs) {
  EnsureCapacity(jobs, &tokens_);
  EnsureCapacity(jobs, &done_);
}

void OutputQueue::SendTokensOf(Job* job) {
  if (std::erase(tokens_, job) > 0) Deliver(job);
}

void OutputQueue::SendAll(absl::FunctionRef<void(Job* job)> answer) {
  for (Job* job : tokens_) Deliver(job);
  tokens_.clear();
  for (const std::unique_ptr<Job>& job : done_) {
    if (job->generation() != nullptr) Deliver(job.get());
    answer(job.get());
  }
  done_.clear();
}

}  // namespace quintet
