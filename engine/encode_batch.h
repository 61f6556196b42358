// The packed encoder batch under way: whose inputs it holds, and the slices it has had.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/job.h"
#include "models/model.h"

namespace quintet {

class EncodeBatch {
 public:
  explicit EncodeBatch(Model* model) : model_(model) {}

  bool active() const { return !entries_.empty(); }
  // Starts a batch with the inputs of `jobs`; none may be under way.
  void Begin(absl::Span<Job* const> jobs);
  // The job has ended: its rows are computed still, but go nowhere.
  void Forget(const Job* job);
  // Does about `work` units; when the batch is complete, hands each job its rows of the encoder
  // states: done(job, begin, end).
  void Advance(int64_t work, absl::FunctionRef<void(Job* job, int64_t begin, int64_t end)> done);

 private:
  struct Entry {
    Job* job;
    int64_t begin, end;
  };

  Model* model_;
  std::vector<Entry> entries_;
  std::vector<int32_t> tokens_, offsets_;
};

}  // namespace quintet
