// What requests are to hear of a step: their new tokens, and the results of those that are done.
// Where a device works beside the host it is sent once the next step is with the device, which
// otherwise would wait for texts to be made and handed over. Not thread safe.
#pragma once

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/job.h"

namespace quintet {

class OutputQueue {
 public:
  // Reserves memory for `jobs` jobs; up to that number the Add functions allocate nothing.
  void Reserve(size_t jobs);
  // A job that goes on and stays until SendAll, or SendTokensOf before it ends.
  void AddTokens(Job* job) { tokens_.push_back(job); }
  void AddDone(std::unique_ptr<Job> job) { done_.push_back(std::move(job)); }

  // A failed allocation marks the job out_of_memory.
  void SendTokensOf(Job* job);
  // Tokens, then results: `answer` is called for each job that is done. Marks jobs likewise.
  void SendAll(absl::FunctionRef<void(Job* job)> answer);

 private:
  std::vector<Job*> tokens_;
  std::vector<std::unique_ptr<Job>> done_;
};

}  // namespace quintet
