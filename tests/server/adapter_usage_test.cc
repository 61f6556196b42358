#include "server/adapter_usage.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace quintet {
namespace {

std::vector<AdapterSource> Sources(const std::vector<std::string>& names) {
  std::vector<AdapterSource> sources;
  for (const std::string& name : names) sources.push_back({name, "/" + name});
  return sources;
}

std::string TextOf(const AdapterUsage& usage) {
  const AdapterUsage::Names names = usage.names();
  return names.running + "|" + names.waiting;
}

TEST_CASE("Adapters are named while requests run or wait with them", "[adapter_usage]") {
  AdapterUsage usage;
  usage.SetAdapters(Sources({"b", "a", "unused"}));
  CHECK(TextOf(usage) == "|");
  usage.Submitted("a");
  usage.Submitted("b");
  usage.Submitted("b");
  usage.Submitted("unknown");
  CHECK(TextOf(usage) == "|a,b");
  usage.Started("b");
  CHECK(TextOf(usage) == "b|a,b");
  usage.Ended("a", /*started=*/false);
  usage.Started("b");
  CHECK(TextOf(usage) == "b|");
  usage.Ended("b", true);
  usage.Ended("b", true);
  CHECK(TextOf(usage) == "|");
}

TEST_CASE("A request may start and end before its submission is recorded", "[adapter_usage]") {
  AdapterUsage usage;
  usage.SetAdapters(Sources({"a"}));
  usage.Started("a");
  CHECK(TextOf(usage) == "a|");
  usage.Ended("a", true);
  CHECK(TextOf(usage) == "|");
  usage.Submitted("a");
  CHECK(TextOf(usage) == "|");
}

TEST_CASE("A removed adapter is named until its requests have ended", "[adapter_usage]") {
  AdapterUsage usage;
  usage.SetAdapters(Sources({"a", "b"}));
  usage.Submitted("a");
  usage.Started("a");
  usage.SetAdapters(Sources({"b"}));
  CHECK(TextOf(usage) == "a|");
  usage.SetAdapters(Sources({"a", "b"}));  // again
  usage.Ended("a", true);
  CHECK(TextOf(usage) == "|");
  usage.SetAdapters({});
  usage.Submitted("a");
  CHECK(TextOf(usage) == "|");
}

TEST_CASE("The number of names is bounded", "[adapter_usage]") {
  AdapterUsage usage;
  std::vector<std::string> names(AdapterUsage::kMaxNames + 5);
  for (size_t i = 0; i < names.size(); ++i) names[i] = "n" + std::to_string(i);
  usage.SetAdapters(Sources(names));
  for (const std::string& name : names) usage.Submitted(name);
  const std::string waiting = usage.names().waiting;
  CHECK(std::count(waiting.begin(), waiting.end(), ',') == AdapterUsage::kMaxNames - 1);
}

}  // namespace
}  // namespace quintet
