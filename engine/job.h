// A request inside the engine, from Submit to its result. States only move forward.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/generation.h"
#include "engine/packed_scoring.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/teacher_forcing.h"
#include "models/model.h"
#include "models/tokenizer.h"

namespace quintet {

enum class JobState : uint8_t { kQueued, kEncoding, kDecoding, kDone, kCancelled, kFailed };

struct Job {
  RequestKind kind() const { return request.kind; }

  uint64_t id = 0;
  Request request;
  JobState state = JobState::kQueued;
  QueuedRequest needs;                     // what the scheduler sees
  int64_t queue_tokens = 0;                // what it counts for in the queue
  bool encodes = false;                    // it takes states of whole inputs
  bool classify_encoded = false;           // the task head reads encoder states ...
  int64_t encoded_row = -1;                // ... of this row; -1: of all
  std::unique_ptr<Generation> generation;  // at most one of these three
  std::unique_ptr<TeacherForcing> forced;
  std::unique_ptr<PackedScoring> scored;  // a causal model's

  // From admission on.
  std::vector<int32_t> source_pages, own_pages;
  std::vector<int32_t> source_slots;
  bool out_of_memory = false;  // an allocation for it failed: it ends as soon as a step allows
  int64_t counted_length = 0;  // the generation's chosen_length() when its tokens were counted
  Result result;
  int64_t submitted_us = 0, admitted_us = 0, encoded_us = 0, first_token_us = 0, last_token_us = 0;

  void MoveTo(JobState next);  // aborts on a step backwards
  void FillTiming(int64_t now_us);
  bool ended() const { return state >= JobState::kDone; }
  bool ran_out_of_memory() const {
    return out_of_memory || (generation != nullptr && generation->out_of_memory());
  }
  DecodeTask* task() const {
    return generation != nullptr ? static_cast<DecodeTask*>(generation.get()) : forced.get();
  }
};

// What the engine offers, for the check at the door.
struct Capacity {
  int64_t running_sequences = 0;
  int64_t pages = 0, page_size = 1;
  int64_t encode_tokens = 0;
  int64_t queue_tokens = 0;
};

// Checks a request and plans its work. INVALID_ARGUMENT: ids out of range, options out of range, or
// it can never fit; FAILED_PRECONDITION: the model lacks the head.
absl::StatusOr<std::unique_ptr<Job>> PlanJob(Request request, const ModelConfig& config,
                                             const Tokenizer* tokenizer, const Capacity& capacity);

// The rows of [0, rows) that PoolStates reads.
struct RowRange {
  int64_t begin, end;
};
RowRange PooledRows(Pooling pooling, int64_t rows);
// Pools states [rows, width], those of PooledRows, as an encode request asks: mean, first, last or
// all rows; unit length if normalised. They may be result->values.
void PoolStates(const Request& request, absl::Span<const float> states, int64_t width,
                Result* result);

}  // namespace quintet
