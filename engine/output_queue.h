// The notifications of a step that are not sent yet: new tokens of streaming requests and results
// of finished requests. With async scheduling they are sent only after the next step has been
// enqueued: the GPU then does not wait while the host detokenizes and delivers. Not thread safe.
#pragma once

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/job.h"
#include "kernels/runtime/thread_pool.h"

namespace quintet {

class OutputQueue {
 public:
  // Reserves memory for `jobs` jobs: with up to that many the Add functions do not allocate.
  void Reserve(size_t jobs);
  // Queues the new tokens of `job`, which must stay alive until SendAll or SendTokensOf(job).
  void AddTokens(Job* job) { tokens_.push_back(job); }
  void AddDone(std::unique_ptr<Job> job) { done_.push_back(std::move(job)); }

  // Delivers the queued tokens of one job, if there are any. After a failed allocation the job is
  // marked out_of_memory.
  void SendTokensOf(Job* job);
  // Delivers all queued tokens. Delivers the last tokens of each finished job, moves its sequences
  // to its result, calls `answer` for it, and deletes it. All of this but `answer` runs on all
  // threads of `pool`. A failed allocation marks only its job out_of_memory.
  void SendAll(ThreadPool* pool, absl::FunctionRef<void(Job* job)> answer);

 private:
  std::vector<Job*> tokens_;
  std::vector<std::unique_ptr<Job>> done_;
};

}  // namespace quintet
