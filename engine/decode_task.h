// The decoder work of one request: generated tokens, log-probabilities of given targets, or hidden
// states of given tokens for a task head. Not thread safe.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "engine/batch_builder.h"

namespace quintet {

class DecodeTask {
 public:
  virtual ~DecodeTask() = default;

  // Upper bounds of its resources, known at submission: sequences in one step and KV cache pages.
  virtual int64_t sequences() const = 0;
  virtual int64_t pages_needed() const = 0;
  // Assigns pages_needed() pages, which outlive the task.
  virtual void AssignPages(absl::Span<const int32_t> pages) = 0;

  // Prompt or target tokens still to be prefilled; 0 while the task generates.
  virtual int64_t prefill_tokens_left() const = 0;
  // Rows that the task needs in the next step: one per generating sequence; 0 during prefill.
  virtual int64_t generating_rows() const = 0;
  // Adds its sequences to the step: its generating rows, or `prefill_tokens` (possibly 0) of the
  // tokens to prefill.
  virtual void AddTo(BatchBuilder* batch, int64_t prefill_tokens) = 0;

  virtual bool done() const = 0;
};

}  // namespace quintet
