#include "engine/encoder_work.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace quintet {

bool EncoderWork::active() const {
  return !inputs_.empty() ||
         std::any_of(projections_.begin(), projections_.end(),
                     [](const Projection& p) { return p.encoded.owner == nullptr; });
}

void EncoderWork::Begin(absl::Span<Job* const> jobs) {
  QT_CHECK(!active() && !jobs.empty());
  tokens_.clear();
  offsets_.assign(1, 0);
  for (Job* job : jobs) {
    const std::vector<int32_t>& input = job->request.input;
    const int64_t begin = static_cast<int64_t>(tokens_.size());
    tokens_.insert(tokens_.end(), input.begin(), input.end());
    offsets_.push_back(static_cast<int32_t>(tokens_.size()));
    inputs_.push_back({job, begin, static_cast<int64_t>(tokens_.size())});
  }
  model_->BeginEncode(tokens_, offsets_);
}

void EncoderWork::AddEncoded(Job* job, EncodedStates encoded) {
  projections_.push_back({job, std::move(encoded)});
}

void EncoderWork::Forget(const Job* job) {
  std::erase_if(projections_, [job](const Projection& p) { return p.job == job; });
  bool wanted = false;
  for (Input& input : inputs_) {
    if (input.job == job) input.job = nullptr;
    wanted = wanted || input.job != nullptr;
  }
  if (!wanted) inputs_.clear();  // the next BeginEncode drops what is under way
}

void EncoderWork::Advance(int64_t budget_us,
                          absl::FunctionRef<void(Job* job, const EncodedStates& states)> ready) {
  const int64_t begin_us = clock_();
  int64_t spent_us = 0;
  // What is left when more than half is spent would go into slices too small to be worth it.
  while (!(inputs_.empty() && projections_.empty()) && 2 * spent_us <= budget_us) {
    if (projections_.empty()) {
      Encode(budget_us - spent_us);
    } else if (Project(budget_us - spent_us)) {
      const Projection complete = std::move(projections_.front());
      projections_.pop_front();
      ready(complete.job, complete.encoded);
    }
    spent_us = clock_() - begin_us;
  }
}

void EncoderWork::Encode(int64_t budget_us) {
  const int64_t work = encode_rate_.WorkFor(budget_us);
  const int64_t begin_us = clock_();
  if (!model_->EncodeSlice(work)) {
    encode_rate_.Record(work, clock_() - begin_us);  // the last slice may be any shorter
    return;
  }
  for (const Input& input : inputs_) {
    if (input.job == nullptr) continue;
    const Tensor states = model_->EncoderStates().Rows(input.begin, input.end);
    Remember(input.job->request.input, states);
    projections_.push_back({input.job, {states, nullptr}});
  }
  inputs_.clear();
}

// Puts a copy into the cache, which is the host's.
void EncoderWork::Remember(const std::vector<int32_t>& ids, const Tensor& states) {
  if (!cache_->enabled()) return;
  const Stream& stream = model_->stream();
  if (stream.backend() == Backend::kCpu) return cache_->Insert(ids, states);
  std::vector<float> host(static_cast<size_t>(states.elements()));
  stream.Read(states, host.data());
  cache_->Insert(ids, Tensor::F32(host.data(), {states.dim[0], states.dim[1]}));
}

bool EncoderWork::Project(int64_t budget_us) {
  Projection& first = projections_.front();
  if (first.job->task() == nullptr) return true;  // nothing will be decoded
  const int64_t begin = first.rows_done, rows = first.encoded.states.dim[0];
  const int64_t end = std::min(rows, begin + project_rate_.WorkFor(budget_us));
  const int64_t begin_us = clock_();
  model_->ProjectCross(first.encoded.states.Rows(begin, end), begin,
                       absl::MakeConstSpan(first.job->source_slots).subspan(begin, end - begin));
  project_rate_.Record(end - begin, clock_() - begin_us);
  first.rows_done = end;
  return end == rows;
}

}  // namespace quintet
