#include "tools/load/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "tests/catch.h"

namespace quintet {
namespace {

LoadShape Shape() {
  LoadShape shape;
  shape.request_rate = 100;
  shape.input_tokens = {4, 9};
  shape.output_tokens = {2, 20};
  shape.vocab = 1000;
  return shape;
}

std::vector<PlannedRequest> Plan(const LoadShape& shape, int count) {
  LoadPlan plan(shape);
  std::vector<PlannedRequest> requests;
  for (int i = 0; i < count; ++i) requests.push_back(plan.Next());
  return requests;
}

struct Intervals {
  double mean_s = 0, deviation_s = 0;
};

Intervals IntervalsOf(const std::vector<PlannedRequest>& requests) {
  double sum = 0, squares = 0;
  int64_t last_us = 0;
  for (const PlannedRequest& request : requests) {
    const double interval = static_cast<double>(request.at_us - last_us) / 1e6;
    last_us = request.at_us;
    sum += interval;
    squares += interval * interval;
  }
  const double count = static_cast<double>(requests.size());
  return {sum / count, std::sqrt(squares / count - sum / count * (sum / count))};
}

TEST_CASE("intervals have the mean of the rate and the spread of the burstiness") {
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    LoadShape shape = Shape();
    shape.burstiness = burstiness;
    const Intervals intervals = IntervalsOf(Plan(shape, 20000));
    INFO(burstiness);
    CHECK(intervals.mean_s == Approx(0.01).epsilon(0.05));
    // A gamma distribution with shape parameter k has the standard deviation mean / sqrt(k).
    CHECK(intervals.deviation_s == Approx(0.01 / std::sqrt(burstiness)).epsilon(0.05));
  }
}

TEST_CASE("without a rate all requests are scheduled at time 0") {
  LoadShape shape = Shape();
  shape.request_rate = 0;
  for (const PlannedRequest& request : Plan(shape, 50)) CHECK(request.at_us == 0);
}

TEST_CASE("lengths cover their ranges") {
  std::set<size_t> inputs;
  std::set<uint32_t> outputs;
  for (const PlannedRequest& request : Plan(Shape(), 2000)) {
    inputs.insert(request.ids.size());
    outputs.insert(request.output_tokens);
    CHECK(*std::max_element(request.ids.begin(), request.ids.end()) < 1000);
    CHECK(*std::min_element(request.ids.begin(), request.ids.end()) >= 100);
  }
  CHECK(*inputs.begin() == 4);
  CHECK(*inputs.rbegin() == 9);
  CHECK(*outputs.begin() == 2);
  CHECK(*outputs.rbegin() == 20);
}

bool SameContents(const PlannedRequest& a, const PlannedRequest& b) {
  return a.ids == b.ids && a.text == b.text && a.output_tokens == b.output_tokens &&
         a.num_beams == b.num_beams;
}

TEST_CASE("equal seeds give equal plans; the rate changes only the arrival times") {
  LoadShape faster = Shape(), other = Shape();
  faster.request_rate = 1000;
  faster.burstiness = 3;
  other.seed = 2;
  const auto plan = Plan(Shape(), 100), again = Plan(Shape(), 100), quick = Plan(faster, 100),
             different = Plan(other, 100);
  int same = 0;
  for (size_t i = 0; i < plan.size(); ++i) {
    CHECK(SameContents(plan[i], again[i]));
    CHECK(plan[i].at_us == again[i].at_us);
    CHECK(SameContents(plan[i], quick[i]));
    same += SameContents(plan[i], different[i]) ? 1 : 0;
  }
  CHECK(same == 0);
  CHECK(quick.back().at_us < plan.back().at_us);
}

TEST_CASE("adapters are chosen by Zipf's law; other contents do not depend on them") {
  LoadShape shape = Shape();
  shape.adapters = {"a", "b", "c", "d"};
  std::map<std::string, int> counts;
  const auto with = Plan(shape, 5000), without = Plan(Shape(), 5000);
  for (size_t i = 0; i < with.size(); ++i) {
    CHECK(SameContents(with[i], without[i]));
    CHECK(without[i].adapter.empty());
    ++counts[with[i].adapter];
  }
  CHECK(counts.size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    const double expected = 5000 / (1 + 1 / 2.0 + 1 / 3.0 + 1 / 4.0) / static_cast<double>(i + 1);
    CHECK(std::abs(counts[shape.adapters[i]] - expected) < 0.15 * expected);
  }
}

TEST_CASE("prompts are shared, and beams are used, in the given proportions") {
  LoadShape shape = Shape();
  shape.distinct_prompts = 5;
  shape.beam_share = 0.25;
  shape.num_beams = 3;
  std::set<std::vector<uint32_t>> prompts;
  int beams = 0;
  for (const PlannedRequest& request : Plan(shape, 4000)) {
    prompts.insert(request.ids);
    beams += request.num_beams == 3 ? 1 : 0;
    CHECK((request.num_beams == 3 || request.num_beams == 1));
  }
  CHECK(prompts.size() == 5);
  CHECK(beams == Approx(1000).epsilon(0.1));
}

TEST_CASE("prompt lines are sent in order") {
  LoadShape shape = Shape();
  shape.lines = {"a", "b", "c"};
  const auto plan = Plan(shape, 7);
  CHECK(plan[0].text == "a");
  CHECK(plan[5].text == "c");
  CHECK(plan[6].text == "a");
  CHECK(plan[0].ids.empty());
}

TEST_CASE("token ranges are parsed and checked") {
  CHECK(ParseTokenRange("--x", "8:128")->low == 8);
  CHECK(ParseTokenRange("--x", "8:128")->high == 128);
  CHECK(ParseTokenRange("--x", "64")->low == 64);
  CHECK(ParseTokenRange("--x", "64")->high == 64);
  for (const char* bad : {"", "a", "1:", ":2", "5:4", "0:4", "-1:4", "1:2:3", "1:1048577"}) {
    INFO(bad);
    const absl::Status status = ParseTokenRange("--x", bad).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK_THAT(std::string(status.message()), Catch::Matchers::StartsWith("--x: "));
  }
}

}  // namespace
}  // namespace quintet
