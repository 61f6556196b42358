// The arguments of one TopK call, planned on the host: a list of entries and a bias for each row.
// An entry ranks the rows of one beam request together, or a single row. All arrays are in one
// pinned buffer, which one copy uploads; nothing is copied if nothing has changed. Threads may call
// SetEntry and SetRow concurrently for different entries and rows; otherwise not thread safe.
#pragma once

#include <bit>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/pinned_array.h"
#include "kernels/runtime/stream.h"
#include "kernels/sampling/selection.h"

namespace quintet {

class TopKPlan {
 public:
  // `stream` outlives the object.
  explicit TopKPlan(const Stream* stream) : stream_(stream), words_(stream) {}

  // Bytes of the pinned buffer of a plan with at most `rows` logits rows and `rows` top-k entries.
  static int64_t BlockBytes(int64_t rows) { return Words(rows) * 4; }
  absl::Status Allocate(int64_t rows);

  // Starts a new plan, for a TopK call that selects `entries` top-k lists from `rows` rows of
  // logits. The caller then sets every entry and, if TopK adds biases, every row.
  void Begin(int64_t entries, int64_t rows);
  // Entry `i` ranks all values of rows [begin, end) together and selects the `k` best of them. The
  // first entry begins at row 0, every other one at the end of the entry before it. With
  // log_softmax the values are log-probabilities.
  void SetEntry(int64_t i, int64_t end, int64_t k, bool log_softmax) {
    words_[OffsetsAt() + i + 1] = static_cast<int32_t>(end);
    words_[KsAt() + i] = static_cast<int32_t>(k);
    words_[LogSoftmaxAt() + i] = log_softmax ? 1 : 0;
  }
  // Sets the bias that TopK adds to the values of row `i` (TopKArgs::row_bias).
  void SetRow(int64_t i, float bias) { words_[BiasesAt() + i] = std::bit_cast<int32_t>(bias); }
  // Enqueues the upload if the plan has changed.
  void Commit() { words_.Commit(); }

  int64_t entries() const { return entries_; }
  // Args returns TopKArgs with the arrays row_offsets and k of this plan. `terms` says which of the
  // optional arrays (biases, log_softmax) of this plan TopKArgs gets as well. The caller sets all
  // other fields.
  struct Terms {
    bool biases = false, log_softmax = false;
  };
  TopKArgs Args(const Terms& terms) const;

 private:
  static int64_t Words(int64_t rows) { return 4 * rows + 1; }
  // Index of the first element of each array in words_.
  int64_t OffsetsAt() const { return 0; }                 // [rows + 1] i32
  int64_t KsAt() const { return rows_ + 1; }              // [rows] i32
  int64_t LogSoftmaxAt() const { return 2 * rows_ + 1; }  // [rows] i32, 0 or 1
  int64_t BiasesAt() const { return 3 * rows_ + 1; }      // [rows] f32

  const Stream* stream_;
  int64_t rows_ = 0;                        // capacity
  int64_t entries_ = 0, planned_rows_ = 0;  // of the current plan
  PinnedArray<int32_t> words_;              // the block
};

}  // namespace quintet
