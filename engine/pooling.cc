#include "engine/pooling.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <span>
#include <utility>

#include "engine/reserve.h"

namespace quintet {

namespace {

// The poolings of a request whose pooling is not kNone. Each of them makes one row of an input; the
// rows are concatenated.
std::span<const Pooling> PoolingsOf(const Request& request) {
  static constexpr Pooling kMean[] = {Pooling::kMean};
  if (request.pooling != Pooling::kModules) return std::span(&request.pooling, 1);
  if (request.modules == nullptr) return kMean;
  return request.modules->poolings;
}

RowPooling RowPoolingOf(Pooling pooling) {
  switch (pooling) {
    case Pooling::kMax:
      return RowPooling::kMax;
    case Pooling::kWeightedMean:
      return RowPooling::kWeightedMean;
    case Pooling::kMeanSqrtLen:
      return RowPooling::kMeanSqrtLen;
    default:
      return RowPooling::kMean;  // also of a single row, which it copies
  }
}

// Returns the segment of rows that `pooling` reads of the input in rows [first_row, first_row +
// rows). The segment leaves out the input's first `prompt_tokens` rows, but never the last row.
PoolSegment SegmentOf(Pooling pooling, int64_t first_row, int64_t rows, int64_t prompt_tokens) {
  int64_t begin = std::min(prompt_tokens, rows - 1), end = rows;
  if (pooling == Pooling::kFirst) end = begin + 1;
  if (pooling == Pooling::kLast) begin = rows - 1;
  return {.begin = static_cast<int32_t>(first_row + begin),
          .end = static_cast<int32_t>(first_row + end),
          .first_weight = static_cast<int32_t>(begin + 1),
          .pooling = RowPoolingOf(pooling)};
}

void Normalize(std::span<float> values) {
  double square = 0.0;
  for (const float v : values) square += static_cast<double>(v) * v;
  if (square == 0.0) return;
  const double scale = 1.0 / std::sqrt(square);
  for (float& v : values) v = static_cast<float>(v * scale);
}

// Pools `states` into one row unless they are pooled already, applies the request's modules to that
// row, and returns the result.
std::vector<float> Embed(const Request& request, const HostStates& states) {
  std::vector<float> values;
  if (states.pooled) {
    values.assign(states.values.begin(), states.values.end());
  } else {
    const int64_t rows = static_cast<int64_t>(states.values.size()) / states.width;
    ForEachPoolSegment(request, 0, rows, [&](const PoolSegment& segment) {
      values.resize(values.size() + static_cast<size_t>(states.width));
      PoolSegmentRows(states.values.data(), states.width, segment,
                      &values[static_cast<size_t>(segment.y_row * states.width)]);
    });
  }
  const SentenceModules* const modules = request.modules;
  if (modules == nullptr) return values;
  for (const SentenceLayer& layer : modules->layers) ApplySentenceLayer(layer, &values);
  if (modules->columns < static_cast<int64_t>(values.size())) values.resize(modules->columns);
  return values;
}

}  // namespace

void ForEachPoolSegment(const Request& request, int64_t first_row, int64_t rows,
                        absl::FunctionRef<void(const PoolSegment& segment)> f) {
  if (request.pooling == Pooling::kNone) return;
  int64_t y_row = first_row;
  for (const Pooling pooling : PoolingsOf(request)) {
    PoolSegment segment = SegmentOf(pooling, first_row, rows, request.prompt_tokens);
    segment.y_row = static_cast<int32_t>(y_row++);
    f(segment);
  }
}

RowRange PooledRows(const Request& request, int64_t rows) {
  const bool first = request.pooling == Pooling::kFirst && request.prompt_tokens == 0;
  return {request.pooling == Pooling::kLast ? rows - 1 : 0, first ? 1 : rows};
}

void PoolStates(const Request& request, const HostStates& states, Result* result) {
  if (request.pooling != Pooling::kNone) {
    result->values = Embed(request, states);
    result->columns = static_cast<int64_t>(result->values.size());
    result->rows = 1;
  } else {
    const std::span<const float> values = states.values;
    if (values.data() != result->values.data() || values.size() != result->values.size()) {
      result->values = std::vector<float>(values.begin(), values.end());
    }
    result->columns = states.width;
    result->rows = static_cast<int64_t>(result->values.size()) / states.width;
    if (result->rows < request.result_rows) {
      result->rows = request.result_rows;
      result->values.resize(static_cast<size_t>(result->rows * result->columns), 0.0f);
    }
  }
  if (!request.normalize) return;
  for (int64_t i = 0; i < result->rows; ++i) {
    Normalize({result->values.data() + i * result->columns, static_cast<size_t>(result->columns)});
  }
}

void PoolingQueue::Reserve(size_t jobs) { EnsureCapacity(jobs, &entries_); }

absl::Status PoolingQueue::Pool(const Stream& stream) {
  absl::Status status;
  for (std::span<const Entry> left = entries_; !left.empty();) {
    const int event = left[0].states.downloaded;
    size_t count = 1;
    while (count < left.size() && left[count].states.downloaded == event) ++count;
    if (event >= 0) status.Update(stream.WaitForEvent(event));
    PoolAll(left.first(count), &stream.pool());
    left = left.subspan(count);
  }
  return status;
}

void PoolingQueue::PoolAll(std::span<const Entry> entries, ThreadPool* threads) {
  int64_t values = 0;
  for (const Entry& entry : entries) {
    values += static_cast<int64_t>(entry.host_states().values.size());
  }
  const auto pool = [entries](int64_t i, int) {
    Job& job = *entries[i].job;
    try {
      PoolStates(job.request, entries[i].host_states(), &job.result);
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
