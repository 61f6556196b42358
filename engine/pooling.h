// Pools hidden states into the result of an encode request, applies the modules of a
// sentence-transformers directory, and optionally scales the result to unit length.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/encoder_cache.h"
#include "engine/job.h"
#include "engine/request.h"
#include "kernels/ops/pooling.h"
#include "kernels/runtime/stream.h"

namespace quintet {

// Calls f(const PoolSegment&) for each row that the request's pooling makes of an input whose
// hidden states are rows [first_row, first_row + rows): one row for each pooling, none for
// Pooling::kNone. The segments' y_row are first_row, first_row + 1, ...
void ForEachPoolSegment(const Request& request, int64_t first_row, int64_t rows,
                        absl::FunctionRef<void(const PoolSegment& segment)> f);

// A range [begin, end) of rows of hidden states. PooledRows returns the range that the request's
// pooling reads if the input has `rows` rows.
struct RowRange {
  int64_t begin, end;
};
RowRange PooledRows(const Request& request, int64_t rows);

// Rows [.., width] of an input in host memory: the hidden states that PooledRows selects or, if
// `pooled`, the results of pooling on the device, one row per segment (ForEachPoolSegment).
struct HostStates {
  std::span<const float> values;
  int64_t width;
  bool pooled = false;
};

// Pools `states` if they are not pooled yet, applies the request's modules, and sets the members
// values, rows and columns of *result. `states` may be result->values itself.
void PoolStates(const Request& request, const HostStates& states, Result* result);

// Encode jobs of one step whose hidden states are being copied to the host. Stepping thread only.
class PoolingQueue {
 public:
  // Reserves memory for `jobs` jobs; Add allocates nothing for up to that many jobs.
  void Reserve(size_t jobs);
  // Adds a job. The copy of its hidden states to the host may be in flight (see
  // EncodedStates::downloaded).
  void Add(Job* job, const EncodedStates& states) { entries_.push_back({job, states}); }
  bool empty() const { return entries_.empty(); }

  // Waits for the hidden states of every job and pools them into its result, while those of later
  // jobs are still being copied. Jobs are pooled in parallel: on one thread, the page faults of the
  // new result buffers would take as long as the GPU takes to compute the states. A failed
  // allocation marks only its job out_of_memory. Returns the device's status.
  absl::Status Pool(const Stream& stream);
  // Calls `done` for every job and empties the queue.
  template <typename Done>
  void Drain(const Done& done) {
    for (const Entry& entry : entries_) done(entry.job);
    entries_.clear();
  }

 private:
  struct Entry {
    Job* job;
    EncodedStates states;

    HostStates host_states() const {
      const bool pooled = states.pooled_rows > 0;
      const RowRange rows =
          pooled ? RowRange{0, states.pooled_rows} : PooledRows(job->request, states.host.dim[0]);
      const Tensor host = states.host.Rows(rows.begin, rows.end);
      return {{host.f32(), static_cast<size_t>(host.elements())}, host.dim[1], pooled};
    }
  };
  static void PoolAll(std::span<const Entry> entries, ThreadPool* threads);

  std::vector<Entry> entries_;
};

}  // namespace quintet
