// What a ranking of logits plans with, in one block of mirrored memory: one entry a request, terms
// for each row. Planned on the host, brought to the device by one copy, or none where nothing has
// changed since the last. Not thread safe.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/buffer.h"
#include "kernels/selection.h"
#include "kernels/stream.h"

namespace quintet {

class TopKPlan {
 public:
  // `stream` outlives the object.
  explicit TopKPlan(const Stream* stream) : stream_(stream) {}

  // Bytes for this many rows, which are at least as many as entries.
  static int64_t BlockBytes(int64_t rows) { return (4 * rows + 1) * 4; }
  absl::Status Allocate(int64_t rows);

  void Begin();
  // The next entry: the `k` best of its `rows`, as log-probabilities where log_softmax says so.
  void AddEntry(int64_t rows, int64_t k, bool log_softmax);
  // The next row's bias: row_bias of TopKArgs.
  void AddRow(float bias);
  // Queues the plan's way to the device.
  void Commit();

  int64_t entries() const { return entries_; }
  // Arguments of TopK with the plan's arrays: row_offsets and k, and where asked for the rows'
  // biases and which entries are log-probabilities.
  struct Terms {
    bool biases = false, log_softmax = false;
  };
  TopKArgs Args(const Terms& terms) const;

 private:
  // Where each array begins in a block of `rows`.
  int64_t OffsetsAt() const { return 0; }
  int64_t KsAt() const { return rows_ + 1; }
  int64_t LogSoftmaxAt() const { return 2 * rows_ + 1; }
  int64_t BiasesAt() const { return 3 * rows_ + 1; }

  const Stream* stream_;
  int64_t rows_ = 0, entries_ = 0, planned_rows_ = 0;
  std::vector<int32_t> planned_;  // the block under way, as 32-bit words
  Buffer block_;                  // the block as brought
  int64_t upload_ = 0;            // that brings it
};

}  // namespace quintet
