#include "kernels/runtime/graph_cache.h"

#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "tests/catch.h"

namespace quintet {
namespace {

struct FakeGraph final : CudaGraph {
  explicit FakeGraph(int n) : number(n) {}
  int number;
};

// Captures fake graphs, numbered from 1 on. After set_fails(true), captures fail.
class FakeRecorder {
 public:
  std::unique_ptr<CudaGraph> Capture() {
    ++attempts_;
    if (fails_) return nullptr;
    return std::make_unique<FakeGraph>(++captured_);
  }
  void set_fails(bool fails) { fails_ = fails; }
  int attempts() const { return attempts_; }

 private:
  bool fails_ = false;
  int attempts_ = 0, captured_ = 0;
};

using Cache = GraphCache<std::string>;

// Calls cache->Use once for `key`; that call may capture the graph. Returns the number of the graph
// to launch, or 0 if there is none.
int Use(Cache* cache, const std::string& key, FakeRecorder* recorder) {
  const CudaGraph* graph = cache->Use(key, [&] { return recorder->Capture(); });
  return graph == nullptr ? 0 : static_cast<const FakeGraph*>(graph)->number;
}

TEST_CASE("GraphCache: a key is captured after `threshold` uses") {
  for (const int64_t threshold : {1, 3, 16}) {
    INFO(threshold);
    FakeRecorder recorder;
    Cache cache({.threshold = threshold, .capacity = 2});
    for (int64_t use = 0; use < threshold; ++use) CHECK(Use(&cache, "a", &recorder) == 0);
    CHECK(recorder.attempts() == 0);
    CHECK(Use(&cache, "a", &recorder) == 1);
    CHECK(Use(&cache, "a", &recorder) == 1);
    CHECK(recorder.attempts() == 1);
    CHECK(Use(&cache, "b", &recorder) == 0);  // each key has a count of its own
  }
}

TEST_CASE("GraphCache: a full cache evicts the least recently used key only") {
  FakeRecorder recorder;
  Cache cache({.threshold = 1, .capacity = 3});
  for (const char* key : {"a", "b", "c", "a", "b", "c"}) Use(&cache, key, &recorder);
  CHECK(recorder.attempts() == 3);
  CHECK(Use(&cache, "a", &recorder) == 1);  // "b" is the oldest now
  CHECK(Use(&cache, "d", &recorder) == 0);
  CHECK(cache.size() == 3);
  CHECK(Use(&cache, "a", &recorder) == 1);
  CHECK(Use(&cache, "c", &recorder) == 3);
  CHECK(Use(&cache, "d", &recorder) == 4);
  CHECK(recorder.attempts() == 4);
  CHECK(Use(&cache, "b", &recorder) == 0);  // evicted: counts from 0 again
  CHECK(Use(&cache, "b", &recorder) == 5);
  CHECK(cache.size() == 3);
}

TEST_CASE("GraphCache: keys used once pass through without evicting a graph in use") {
  FakeRecorder recorder;
  Cache cache({.threshold = 1, .capacity = 2});
  Use(&cache, "often", &recorder);
  for (int i = 0; i < 100; ++i) {
    CHECK(Use(&cache, "often", &recorder) == 1);
    CHECK(Use(&cache, std::to_string(i), &recorder) == 0);
    CHECK(cache.size() == 2);
  }
  CHECK(recorder.attempts() == 1);
}

TEST_CASE("GraphCache: a failed capture is tried again after `threshold` more uses") {
  FakeRecorder recorder;
  Cache cache({.threshold = 2, .capacity = 1});
  recorder.set_fails(true);
  for (int use = 0; use < 3; ++use) CHECK(Use(&cache, "a", &recorder) == 0);
  CHECK(recorder.attempts() == 1);
  recorder.set_fails(false);
  CHECK(Use(&cache, "a", &recorder) == 0);
  CHECK(Use(&cache, "a", &recorder) == 0);
  CHECK(recorder.attempts() == 1);
  CHECK(Use(&cache, "a", &recorder) == 1);
}

TEST_CASE("GraphCache: an exception of a capture passes through and counts as a failure") {
  FakeRecorder recorder;
  Cache cache({.threshold = 1, .capacity = 1});
  CHECK(Use(&cache, "a", &recorder) == 0);
  const auto no_memory = []() -> std::unique_ptr<CudaGraph> { throw std::bad_alloc(); };
  CHECK_THROWS_AS(cache.Use("a", no_memory), std::bad_alloc);
  CHECK(Use(&cache, "a", &recorder) == 0);
  CHECK(Use(&cache, "a", &recorder) == 1);
}

TEST_CASE("GraphCache: Clear drops all graphs and counts") {
  FakeRecorder recorder;
  Cache cache({.threshold = 1, .capacity = 4});
  for (const char* key : {"a", "a", "b"}) Use(&cache, key, &recorder);
  cache.Clear();
  CHECK(cache.size() == 0);
  CHECK(Use(&cache, "a", &recorder) == 0);
  CHECK(Use(&cache, "b", &recorder) == 0);
  CHECK(Use(&cache, "a", &recorder) == 2);
}

TEST_CASE("GraphCache: an entry may hold several graphs, under a composite key") {
  FakeRecorder recorder;
  using Parts = std::vector<std::unique_ptr<CudaGraph>>;
  using Key = std::pair<int, std::vector<int>>;
  GraphCache<Key, Parts> cache({.threshold = 1, .capacity = 2});
  const auto capture = [&] {
    auto parts = std::make_unique<Parts>();
    for (int part = 0; part < 2; ++part) parts->push_back(recorder.Capture());
    return parts;
  };
  const Key key = {7, {1, 2}};
  CHECK(cache.Use(key, capture) == nullptr);
  const Parts* parts = cache.Use(key, capture);
  REQUIRE(parts != nullptr);
  CHECK(parts->size() == 2);
  CHECK(cache.Use({7, {1, 3}}, capture) == nullptr);
  CHECK(cache.Use(key, capture) == parts);
}

}  // namespace
}  // namespace quintet
