#include "engine/pooling.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "engine/reserve.h"

namespace quintet {

namespace {

// Pools rows [begin, rows) of `states` [rows, width] into one row and appends it to *values.
void Pool(Pooling pooling, absl::Span<const float> states, int64_t width, int64_t begin,
          std::vector<float>* values) {
  const int64_t rows = static_cast<int64_t>(states.size()) / width;
  const auto row = [&](int64_t i) { return states.subspan(i * width, width); };
  if (pooling == Pooling::kFirst || pooling == Pooling::kLast) {
    const absl::Span<const float> chosen = row(pooling == Pooling::kFirst ? begin : rows - 1);
    values->insert(values->end(), chosen.begin(), chosen.end());
    return;
  }
  if (pooling == Pooling::kMax) {
    std::vector<float> most(row(begin).begin(), row(begin).end());
    for (int64_t i = begin + 1; i < rows; ++i) {
      for (int64_t c = 0; c < width; ++c) most[c] = std::max(most[c], states[i * width + c]);
    }
    values->insert(values->end(), most.begin(), most.end());
    return;
  }
  std::vector<double> sum(width, 0.0);
  double weights = 0;
  for (int64_t i = begin; i < rows; ++i) {
    const double weight = pooling == Pooling::kWeightedMean ? static_cast<double>(i + 1) : 1.0;
    weights += weight;
    for (int64_t c = 0; c < width; ++c) sum[c] += weight * states[i * width + c];
  }
  const double divisor = pooling == Pooling::kMeanSqrtLen ? std::sqrt(weights) : weights;
  for (const double s : sum) values->push_back(static_cast<float>(s / divisor));
}

void Normalize(absl::Span<float> values) {
  double square = 0.0;
  for (const float v : values) square += static_cast<double>(v) * v;
  if (square == 0.0) return;
  const double scale = 1.0 / std::sqrt(square);
  for (float& v : values) v = static_cast<float>(v * scale);
}

// Pools `states` into one row, applies the request's modules to it, and returns the result.
std::vector<float> Embed(const Request& request, absl::Span<const float> states, int64_t width) {
  const int64_t rows = static_cast<int64_t>(states.size()) / width;
  const int64_t begin = std::min(request.prompt_tokens, rows - 1);
  const SentenceModules* const modules = request.modules;
  std::vector<float> values;
  if (request.pooling != Pooling::kModules) {
    Pool(request.pooling, states, width, begin, &values);
  } else if (modules == nullptr) {
    Pool(Pooling::kMean, states, width, begin, &values);
  } else {
    for (const Pooling pooling : modules->poolings) Pool(pooling, states, width, begin, &values);
  }
  if (modules == nullptr) return values;
  for (const SentenceLayer& layer : modules->layers) ApplySentenceLayer(layer, &values);
  if (modules->columns < static_cast<int64_t>(values.size())) values.resize(modules->columns);
  return values;
}

}  // namespace

RowRange PooledRows(const Request& request, int64_t rows) {
  const bool first = request.pooling == Pooling::kFirst && request.prompt_tokens == 0;
  return {request.pooling == Pooling::kLast ? rows - 1 : 0, first ? 1 : rows};
}

void PoolStates(const Request& request, absl::Span<const float> states, int64_t width,
                Result* result) {
  if (request.pooling != Pooling::kNone) {
    result->values = Embed(request, states, width);
    result->columns = static_cast<int64_t>(result->values.size());
    result->rows = 1;
  } else {
    if (states.data() != result->values.data() || states.size() != result->values.size()) {
      result->values = std::vector<float>(states.begin(), states.end());
    }
    result->columns = width;
    result->rows = static_cast<int64_t>(result->values.size()) / width;
  }
  if (!request.normalize) return;
  for (int64_t i = 0; i < result->rows; ++i) {
    Normalize({result->values.data() + i * result->columns, static_cast<size_t>(result->columns)});
  }
}

void PoolingQueue::Reserve(size_t jobs) { EnsureCapacity(jobs, &entries_); }

absl::Status PoolingQueue::Pool(const Stream& stream) {
  absl::Status status;
  for (absl::Span<const Entry> left = entries_; !left.empty();) {
    const int event = left[0].states.downloaded;
    size_t count = 1;
    while (count < left.size() && left[count].states.downloaded == event) ++count;
    if (event >= 0) status.Update(stream.WaitForEvent(event));
    PoolAll(left.first(count), &stream.pool());
    left.remove_prefix(count);
  }
  return status;
}

void PoolingQueue::PoolAll(absl::Span<const Entry> entries, ThreadPool* threads) {
  int64_t values = 0;
  for (const Entry& entry : entries) values += entry.pooled_states().elements();
  const auto pool = [entries](int64_t i, int) {
    const Tensor states = entries[i].pooled_states();
    Job& job = *entries[i].job;
    try {
      PoolStates(job.request, {states.f32(), static_cast<size_t>(states.elements())}, states.dim[1],
                 &job.result);
    } catch (const std::bad_alloc&) {
      job.out_of_memory = true;
    }
  };
  constexpr int64_t kMinParallelValues = int64_t{1} << 16;  // below, waking threads costs more
  const auto jobs = static_cast<int64_t>(entries.size());
  if (values >= kMinParallelValues) {
    threads->ParallelFor(jobs, pool);
  } else {
    for (int64_t i = 0; i < jobs; ++i) pool(i, 0);
  }
}

}  // namespace quintet
