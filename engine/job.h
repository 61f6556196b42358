// A request inside the engine, from Submit to its result. Its JobState only moves forward, from
// kQueued to one of the final states.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/generation.h"
#include "engine/packed_scoring.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/teacher_forcing.h"
#include "models/adapter_layout.h"
#include "models/adapter_slots.h"
#include "models/model.h"
#include "models/tokenizers/tokenizer.h"

namespace quintet {

enum class JobState : uint8_t { kQueued, kEncoding, kDecoding, kDone, kCancelled, kFailed };

struct Job {
  Request request;

  // The members from here to `needs` are read by every step. They are in neighbouring cache lines,
  // which PrefetchAhead loads.
  uint64_t id = 0;
  JobState state = JobState::kQueued;
  bool encodes = false;           // its input is encoded as a whole before anything else
  bool classify_encoded = false;  // the task head reads the encoded input, not decoder states
  bool out_of_memory = false;     // an allocation for the job failed: it ends in this step
  bool streams = false;           // copy of request.stream
  int32_t adapter = -1;           // slot of request.adapter (AdapterSlots) once started; -1: none
  // The job's work in addition to encoding its input: decoder steps (Generation, TeacherForcing);
  // scoring by a causal model in encoder batches (PackedScoring); or none (embeddings, task heads
  // that read encoder output).
  std::variant<std::monostate, std::unique_ptr<Generation>, std::unique_ptr<TeacherForcing>,
               std::unique_ptr<PackedScoring>>
      work;
  std::vector<int32_t> source_slots;  // [input tokens] slots of the cross-attention keys
  // Values of chosen_length() and new_tokens() of the job's generation when the engine last counted
  // its new tokens; later tokens are not counted yet.
  int64_t counted_length = 0, counted_tokens = 0;
  int64_t first_token_us = 0, last_token_us = 0;
  QueuedRequest needs;  // resources, for the scheduler

  int64_t submitted_us = 0, admitted_us = 0, encoded_us = 0;
  int64_t queue_tokens = 0;                      // tokens that count against max_queue_tokens
  int64_t encoded_row = -1;                      // if classify_encoded: row to read; -1: all rows
  std::vector<int32_t> source_pages, own_pages;  // KV pages of the encoded input and of the decoder
  Result result;

  RequestKind kind() const { return request.kind; }
  // PackedAdapter::id of request.adapter; 0: none.
  uint64_t adapter_id() const { return request.adapter == nullptr ? 0 : request.adapter->id; }
  // Returns the job's work if it has the type that the function's name says, otherwise null.
  Generation* generation() const { return Work<Generation>(); }
  TeacherForcing* teacher_forcing() const { return Work<TeacherForcing>(); }
  PackedScoring* scoring() const { return Work<PackedScoring>(); }
  // The job's decoder work (generation or teacher forcing); null if the job never decodes.
  DecodeTask* task() const {
    if (Generation* const task = generation()) return task;
    return teacher_forcing();
  }

  void MoveTo(JobState next);  // aborts on a step backwards
  void FillTiming(int64_t now_us);
  // Sets result.output_tokens to the number of scored target tokens.
  void CountScoredTokens();
  bool ran_out_of_memory() const {
    return out_of_memory || (generation() != nullptr && generation()->out_of_memory());
  }

 private:
  template <typename T>
  T* Work() const {
    const std::unique_ptr<T>* const held = std::get_if<std::unique_ptr<T>>(&work);
    return held == nullptr ? nullptr : held->get();
  }
};

// Prefetches the members that a step reads. A loop over `jobs` calls this for each i; it prefetches
// the members of jobs that are a few places after jobs[i] in the list.
inline void PrefetchAhead(std::span<Job* const> jobs, size_t i) {
  constexpr size_t kJobs = 12, kGenerations = 6;
  if (i + kJobs < jobs.size()) {
    const auto* const used = reinterpret_cast<const char*>(&jobs[i + kJobs]->id);
    for (const size_t line : {0, 64, 128}) __builtin_prefetch(used + line);
  }
  if (i + kGenerations >= jobs.size()) return;
  if (const Generation* const next = jobs[i + kGenerations]->generation()) next->Prefetch();
}

// The engine's total resources. Each request is checked against them at submission.
struct Capacity {
  int64_t running_sequences = 0;           // sequences of all running requests; each beam counts
  int64_t pages = 0, page_size = 1;        // KV cache pages; tokens per page
  int64_t page_bytes = 0;                  // memory of one KV cache page, of all layers
  int64_t encode_tokens = 0;               // tokens of one encoder batch
  int64_t queue_tokens = 0;                // EngineLimits::max_queue_tokens
  const AdapterSlots* adapters = nullptr;  // null: the model was loaded without adapters
};

// Checks a request and plans its work. INVALID_ARGUMENT: a token id or an option is out of range,
// or the request needs more than `capacity`. FAILED_PRECONDITION: the model lacks the head that it
// needs.
absl::StatusOr<std::unique_ptr<Job>> PlanJob(Request request, const ModelConfig& config,
                                             const Tokenizer* tokenizer, const Capacity& capacity);

}  // namespace quintet
