#include "engine/output_queue.h"

#include <iterator>
#include <new>

#include "engine/reserve.h"
#include "kernels/runtime/parallel_blocks.h"

namespace quintet {
namespace {

constexpr int64_t kJobsPerTask = 16;  // fewer jobs are not worth waking a thread

void Deliver(Job* job) {
  if (job->ran_out_of_memory()) return;
  try {
    job->generation()->Deliver(job->request.sink.get());
  } catch (const std::bad_alloc&) {
    job->out_of_memory = true;
  }
}

// Delivers the last tokens of a finished job and moves its sequences to its result.
void Complete(Job* job) {
  if (job->generation() == nullptr) return;
  Deliver(job);
  if (job->out_of_memory) return;
  try {
    job->result.sequences = job->generation()->TakeSequences();
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

void OutputQueue::SendAll(ThreadPool* pool, absl::FunctionRef<void(Job* job)> answer) {
  ForEachInBlocks(pool, std::ssize(tokens_), kJobsPerTask,
                  [this](int64_t i) { Deliver(tokens_[i]); });
  tokens_.clear();
  if (done_.empty()) return;
  const auto done = std::ssize(done_);
  ForEachInBlocks(pool, done, kJobsPerTask, [this](int64_t i) { Complete(done_[i].get()); });
  for (const std::unique_ptr<Job>& job : done_) answer(job.get());
  ForEachInBlocks(pool, done, kJobsPerTask, [this](int64_t i) { done_[i].reset(); });
  done_.clear();
}

}  // namespace quintet
