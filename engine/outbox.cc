#include "engine/outbox.h"

namespace quintet {
namespace {

void Deliver(Job* job) { job->generation->Deliver(job->request.sink.get()); }

}  // namespace

void Outbox::SendTokensOf(Job* job) {
  if (std::erase(tokens_, job) > 0) Deliver(job);
}

void Outbox::SendAll(absl::FunctionRef<void(Job* job)> answer) {
  for (Job* job : tokens_) Deliver(job);
  tokens_.clear();
  for (const std::unique_ptr<Job>& job : done_) {
    if (job->generation != nullptr) Deliver(job.get());
    answer(job.get());
  }
  done_.clear();
}

}  // namespace quintet
