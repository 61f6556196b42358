#include "engine/pooling.h"

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/runtime/stream.h"
#include "tests/catch.h"

namespace quintet {
namespace {

Request EncodeRequest(Pooling pooling, bool normalize = false) {
  Request request;
  request.kind = RequestKind::kEncode;
  request.pooling = pooling;
  request.normalize = normalize;
  return request;
}

// Pools `states` [rows, width] as `request` specifies and returns the result. Passes PoolStates
// only the rows that PooledRows selects.
Result Pooled(const Request& request, const std::vector<float>& states, int64_t width) {
  const RowRange rows = PooledRows(request, static_cast<int64_t>(states.size()) / width);
  Result result;
  const auto values =
      std::span(states).subspan(static_cast<size_t>(rows.begin * width),
                                static_cast<size_t>((rows.end - rows.begin) * width));
  PoolStates(request, {values, width}, &result);
  return result;
}

const std::vector<float> kStates = {3, 4, 0, 0, 6, 8};  // [3, 2]

TEST_CASE("pooling: each kind reads only the rows that it needs") {
  const Result first = Pooled(EncodeRequest(Pooling::kFirst), kStates, 2);
  CHECK(first.values == std::vector<float>{3, 4});
  CHECK(first.rows == 1);
  CHECK(first.columns == 2);
  CHECK(Pooled(EncodeRequest(Pooling::kLast), kStates, 2).values == std::vector<float>{6, 8});
  CHECK(Pooled(EncodeRequest(Pooling::kMean), kStates, 2).values == std::vector<float>{3, 4});
  const Result none = Pooled(EncodeRequest(Pooling::kNone), kStates, 2);
  CHECK(none.values == kStates);
  CHECK(none.rows == 3);
}

TEST_CASE("pooling: rows are scaled to unit length one by one, and zero rows stay zero") {
  const Result all = Pooled(EncodeRequest(Pooling::kNone, /*normalize=*/true), kStates, 2);
  const std::vector<float> expected = {0.6f, 0.8f, 0, 0, 0.6f, 0.8f};
  REQUIRE(all.values.size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) CHECK(std::abs(all.values[i] - expected[i]) < 1e-7f);
}

TEST_CASE("pooling: the mean is summed in double") {
  // An f32 sum would lose the 1 next to 1e8.
  const std::vector<float> states = {1e8f, 1.0f, -1e8f, 2.0f};
  CHECK(Pooled(EncodeRequest(Pooling::kMean), states, 1).values == std::vector<float>{0.75f});
}

TEST_CASE("pooling: states may already be the result's values") {
  Result result;
  result.values = {3, 4, 6, 8};
  PoolStates(EncodeRequest(Pooling::kNone), {result.values, 2}, &result);
  CHECK(result.values == std::vector<float>{3, 4, 6, 8});
  PoolStates(EncodeRequest(Pooling::kMean), {result.values, 2}, &result);
  CHECK(result.values == std::vector<float>{4.5f, 6.0f});
}

// Pools the hidden states of `count` jobs, [rows, 2] each. Row r of job j holds the values {j, r}.
void PoolJobs(int count, int64_t rows, ThreadPool* pool) {
  const Stream stream(pool);
  std::vector<Job> jobs(static_cast<size_t>(count));
  std::vector<std::vector<float>> states(jobs.size());
  PoolingQueue queue;
  queue.Reserve(jobs.size());
  CHECK(queue.empty());
  for (size_t j = 0; j < jobs.size(); ++j) {
    jobs[j].request = EncodeRequest(j % 2 == 0 ? Pooling::kLast : Pooling::kNone);
    for (int64_t r = 0; r < rows; ++r) {
      states[j].push_back(static_cast<float>(j));
      states[j].push_back(static_cast<float>(r));
    }
    EncodedStates encoded;
    encoded.host = Tensor::F32(states[j].data(), {rows, 2});
    queue.Add(&jobs[j], encoded);
  }
  CHECK_FALSE(queue.empty());
  REQUIRE(queue.Pool(stream).ok());
  size_t next = 0;
  queue.Drain([&](Job* job) {
    CHECK(job == &jobs[next]);
    ++next;
  });
  CHECK(next == jobs.size());
  CHECK(queue.empty());
  for (size_t j = 0; j < jobs.size(); ++j) {
    const auto last = static_cast<float>(rows - 1);
    const std::vector<float> expected =
        j % 2 == 0 ? std::vector<float>{static_cast<float>(j), last} : states[j];
    CHECK(jobs[j].result.values == expected);
    CHECK_FALSE(jobs[j].out_of_memory);
  }
}

TEST_CASE("pooling queue: every job gets its own rows, and jobs are drained in order") {
  ThreadPool pool(2);
  PoolJobs(5, 3, &pool);       // on the calling thread
  PoolJobs(9, 20'000, &pool);  // on the pool: above 65,536 values
}

}  // namespace
}  // namespace quintet
