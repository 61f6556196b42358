// The decoder work of one request: it generates tokens, scores given target tokens, or computes the
// hidden states of given tokens for a task head. Not thread safe.
#pragma once

#include <cstdint>
#include <span>

#include "engine/batch_builder.h"

namespace quintet {

class DecodeTask {
 public:
  virtual ~DecodeTask() = default;

  // Upper bounds that are known when the request is submitted. sequences(): how many sequences this
  // task has in one decoder step. pages_needed(): how many KV cache pages its decoder tokens need,
  // without the pages for the encoded input.
  virtual int64_t sequences() const = 0;
  virtual int64_t pages_needed() const = 0;
  // Gives the task its pages_needed() KV cache pages. The memory of `pages` must outlive the task.
  virtual void AssignPages(std::span<const int32_t> pages) = 0;

  // Number of prompt or target tokens still to be prefilled; 0 while the task generates.
  virtual int64_t prefill_tokens_left() const = 0;
  // Number of rows that the task needs in the next step: one per generating sequence; 0 during
  // prefill.
  virtual int64_t generating_rows() const = 0;
  // Adds the task's sequences to the next step's batch: one row per generating sequence, or, during
  // prefill, the next `prefill_tokens` (possibly 0) of the tokens still to be prefilled.
  virtual void AddTo(BatchBuilder* batch, int64_t prefill_tokens) = 0;

  virtual bool done() const = 0;
};

}  // namespace quintet
