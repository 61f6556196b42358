#include "engine/encode_batch.h"

#include <algorithm>

#include "kernels/check.h"

namespace quintet {

void EncodeBatch::Begin(absl::Span<Job* const> jobs) {
  QT_CHECK(!active() && !jobs.empty());
  tokens_.clear();
  offsets_.assign(1, 0);
  for (Job* job : jobs) {
    const std::vector<int32_t>& input = job->request.input;
    const int64_t begin = static_cast<int64_t>(tokens_.size());
    tokens_.insert(tokens_.end(), input.begin(), input.end());
    offsets_.push_back(static_cast<int32_t>(tokens_.size()));
    entries_.push_back({job, begin, static_cast<int64_t>(tokens_.size())});
  }
  model_->BeginEncode(tokens_, offsets_);
}

void EncodeBatch::Forget(const Job* job) {
  bool wanted = false;
  for (Entry& entry : entries_) {
    if (entry.job == job) entry.job = nullptr;
    wanted = wanted || entry.job != nullptr;
  }
  if (!wanted) entries_.clear();  // the next BeginEncode drops what is under way
}

void EncodeBatch::Advance(int64_t work,
                          absl::FunctionRef<void(Job* job, int64_t begin, int64_t end)> done) {
  if (!active() || !model_->EncodeSlice(work)) return;
  const std::vector<Entry> finished = std::move(entries_);
  entries_.clear();
  for (const Entry& entry : finished) {
    if (entry.job != nullptr) done(entry.job, entry.begin, entry.end);
  }
}

}  // namespace quintet
