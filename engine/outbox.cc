#include "engine/outbox.h"

#include <new>

#include "engine/reserve.h"

namespace quintet {
namespace {

void Deliver(Job* job) {
  if (job->ran_out_of_memory()) return;
  try {
    job->generation->Deliver(job->request.sink.get());
  } catch (const std::bad_alloc&) {
    job->out_of_memory = true;
  }
}

}  // namespace

void Outbox::Reserve(size_t jobs) {
  MakeRoom(jobs, &tokens_);
  MakeRoom(jobs, &done_);
}

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
