#include "engine/encoder_cache.h"

#include <map>
#include <random>

#include "tests/catch.h"

namespace quintet {
namespace {

constexpr int64_t kRowWidth = 8;
constexpr int32_t kNoAdapter = -1;

std::vector<float> StatesOf(const std::vector<int32_t>& ids) {
  std::vector<float> states;
  for (size_t i = 0; i < ids.size() * kRowWidth; ++i)
    states.push_back(static_cast<float>(ids[0] * 100 + i));
  return states;
}

bool Holds(EncoderCache* cache, const std::vector<int32_t>& ids) {
  const Tensor found = cache->Find(ids, kNoAdapter).states;
  if (!found.defined()) return false;
  const std::vector<float> expected = StatesOf(ids);
  REQUIRE(found.dim[0] == static_cast<int64_t>(ids.size()));
  REQUIRE(found.dim[1] == kRowWidth);
  REQUIRE(std::vector<float>(found.f32(), found.f32() + found.elements()) == expected);
  return true;
}

void Insert(EncoderCache* cache, const std::vector<int32_t>& ids) {
  const std::vector<float> states = StatesOf(ids);
  cache->Insert(ids, kNoAdapter,
                Tensor::F32(states.data(), {static_cast<int64_t>(ids.size()), kRowWidth}));
}

TEST_CASE("encoder cache: returns inserted states, evicts the least recently used") {
  EncoderCache cache(1200);
  Insert(&cache, {1, 1, 1});
  const int64_t each = cache.used_bytes();
  REQUIRE((each > 96 && 3 * each <= 1200));
  const int64_t fits = 1200 / each;
  for (int32_t i = 2; i <= fits; ++i) Insert(&cache, {i, 1, 1});
  CHECK(Holds(&cache, {1, 1, 1}));  // now 2 is the least recently used
  Insert(&cache, {99, 1, 1});
  CHECK(Holds(&cache, {1, 1, 1}));
  CHECK_FALSE(Holds(&cache, {2, 1, 1}));
  CHECK(Holds(&cache, {99, 1, 1}));
  CHECK_FALSE(Holds(&cache, {1, 1}));
  CHECK(cache.queries() == 5);
  CHECK(cache.hits() == 3);
}

TEST_CASE("encoder cache: an input with another adapter is another entry") {
  EncoderCache cache(1200);
  const std::vector<int32_t> ids = {4, 5};
  Insert(&cache, ids);
  CHECK_FALSE(cache.Find(ids, 0).states.defined());
  const std::vector<float> states(2 * kRowWidth, 7.0f);
  cache.Insert(ids, 0, Tensor::F32(states.data(), {2, kRowWidth}));
  const Tensor found = cache.Find(ids, 0).states;
  REQUIRE(found.defined());
  CHECK(found.f32()[0] == 7.0f);
  CHECK(Holds(&cache, ids));
}

TEST_CASE("encoder cache: ignores entries above its capacity, and everything when it is off") {
  EncoderCache cache(1200);
  Insert(&cache, std::vector<int32_t>(100, 3));
  CHECK(cache.used_bytes() == 0);
  EncoderCache off(0);
  Insert(&off, {1});
  CHECK_FALSE(off.Find({1}, kNoAdapter).states.defined());
  CHECK(off.queries() == 0);
}

TEST_CASE("encoder cache: random use never exceeds its bytes or confuses entries") {
  std::mt19937 random(2);
  EncoderCache cache(5000);
  int hits = 0;
  for (int step = 0; step < 20000; ++step) {
    const std::vector<int32_t> ids(1 + random() % 5, static_cast<int32_t>(random() % 12));
    if (Holds(&cache, ids)) {
      ++hits;
    } else {
      Insert(&cache, ids);
      REQUIRE(Holds(&cache, ids));
    }
    REQUIRE(cache.used_bytes() <= 5000);
  }
  CHECK(hits > 1000);
}

}  // namespace
}  // namespace quintet
