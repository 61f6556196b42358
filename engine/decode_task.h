// One request's part in the decoder's steps, whatever it is after: generated tokens,
// log-probabilities of given ones, states.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "engine/batch_builder.h"

namespace quintet {

class DecodeTask {
 public:
  virtual ~DecodeTask() = default;

  // What it needs at most, known at the door: sequences of one step, and pages of the cache.
  virtual int64_t sequences() const = 0;
  virtual int64_t pages_needed() const = 0;
  // Gives it its pages; they outlive the task.
  virtual void AssignPages(absl::Span<const int32_t> pages) = 0;

  // Tokens that are given beforehand and still have to be read (a prompt, targets); 0 while it
  // generates.
  virtual int64_t prefill_tokens_left() const = 0;
  // Rows it must have in the next step: one a generating sequence; 0 while it reads.
  virtual int64_t generating_rows() const = 0;
  // Adds its sequences to the step: its generating rows, or `prefill_tokens` (possibly 0) of the
  // given tokens.
  virtual void AddTo(BatchBuilder* batch, int64_t prefill_tokens) = 0;

  virtual bool done() const = 0;
};

}  // namespace quintet
