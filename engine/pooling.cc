#include "engine/pooling.h"

#include <cmath>
#include <new>
#include <utility>

#include "engine/reserve.h"

namespace quintet {

RowRange PooledRows(Pooling pooling, int64_t rows) {
  return {pooling == Pooling::kLast ? rows - 1 : 0, pooling == Pooling::kFirst ? 1 : rows};
}

void PoolStates(const Request& request, absl::Span<const float> states, int64_t width,
                Result* result) {
  const int64_t rows = static_cast<int64_t>(states.size()) / width;
  result->columns = width;
  if (request.pooling == Pooling::kMean) {
    std::vector<double> sum(width, 0.0);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t c = 0; c < width; ++c) sum[c] += states[i * width + c];
    }
    std::vector<float> mean;
    mean.reserve(width);
    for (double s : sum) mean.push_back(static_cast<float>(s / rows));
    result->values = std::move(mean);
  } else if (states.data() != result->values.data() || states.size() != result->values.size()) {
    result->values = std::vector<float>(states.begin(), states.end());
  }
  result->rows = static_cast<int64_t>(result->values.size()) / width;
  if (!request.normalize) return;
  for (int64_t i = 0; i < result->rows; ++i) {
    const absl::Span<float> values(result->values.data() + i * width, width);
    double square = 0.0;
    for (float v : values) square += static_cast<double>(v) * v;
    if (square == 0.0) continue;
    const double scale = 1.0 / std::sqrt(square);
    for (float& v : values) v = static_cast<float>(v * scale);
  }
}

void PoolingQueue::Reserve(size_t jobs) { EnsureCapacity(jobs, &entries_); }

absl::Status PoolingQueue::Pool(const Stream& stream) {
  const absl::Status status = stream.Synchronize();
  int64_t values = 0;
  for (const Entry& entry : entries_) values += entry.pooled_states().elements();
  const auto pool = [this](int64_t i, int) {
    const Tensor states = entries_[i].pooled_states();
    Job& job = *entries_[i].job;
    try {
      PoolStates(job.request, {states.f32(), static_cast<size_t>(states.elements())}, states.dim[1],
                 &job.result);
    } catch (const std::bad_alloc&) {
      job.out_of_memory = true;
    }
  };
  constexpr int64_t kMinParallelValues = int64_t{1} << 16;  // below, waking threads costs more
  const auto jobs = static_cast<int64_t>(entries_.size());
  if (values >= kMinParallelValues) {
    stream.pool().ParallelFor(jobs, pool);
  } else {
    for (int64_t i = 0; i < jobs; ++i) pool(i, 0);
  }
  return status;
}

}  // namespace quintet
