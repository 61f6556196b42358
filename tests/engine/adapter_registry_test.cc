#include "engine/adapter_registry.h"

#include <filesystem>
#include <thread>

#include "absl/strings/match.h"
#include "models/adapter_layout.h"
#include "tests/catch.h"
#include "tests/models/scratch_directory.h"

namespace quintet {
namespace {

AdapterHandle ReadNothing(const AdapterSource& source) {
  const auto adapter = std::make_shared<PackedAdapter>();
  adapter->source = source;
  adapter->stamp = StampAdapter(source.path);
  adapter->size.bytes = 10;
  return adapter;
}

TEST_CASE("Calls find adapters by name", "[adapter_registry]") {
  AdapterRegistry registry;
  CHECK(absl::StrContains(registry.Find("a").status().message(), "it has: none"));
  const AdapterHandle a = ReadNothing({"a", "/a"}), b = ReadNothing({"b", "/b"});
  registry.Set({b, a});
  CHECK(*registry.Find("a") == a);
  CHECK(registry.bytes() == 20);
  CHECK(registry.sources() == std::vector<AdapterSource>{{"b", "/b"}, {"a", "/a"}});
  const absl::Status missing = registry.Find("c").status();
  CHECK(absl::IsNotFound(missing));
  CHECK(absl::StrContains(missing.message(), "it has: b, a"));
  registry.Set({});
  CHECK(absl::IsNotFound(registry.Find("a").status()));
  CHECK(a.use_count() == 1);
}

TEST_CASE("Single adapters are put, replaced and removed", "[adapter_registry]") {
  AdapterRegistry registry;
  const AdapterHandle a = ReadNothing({"a", "/a"}), other = ReadNothing({"a", "/other"});
  REQUIRE(registry.Put(a).ok());
  REQUIRE(registry.Put(ReadNothing({"b", "/b"})).ok());
  REQUIRE(registry.Put(other).ok());
  CHECK(*registry.Find("a") == other);
  CHECK(registry.sources().size() == 2);
  CHECK(absl::IsInvalidArgument(registry.Put(ReadNothing({"with:colon", "/c"}))));
  CHECK(registry.sources().size() == 2);
  REQUIRE(registry.Remove("a").ok());
  CHECK(absl::IsNotFound(registry.Remove("a")));
  CHECK(registry.sources() == std::vector<AdapterSource>{{"b", "/b"}});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&registry, i] {
      const std::string name = "t" + std::to_string(i);
      for (int turn = 0; turn < 100; ++turn) {
        if (!registry.Put(ReadNothing({name, "/t"})).ok() || !registry.Remove(name).ok()) return;
      }
      (void)registry.Put(ReadNothing({name, "/t"}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(registry.sources().size() == 5);
}

TEST_CASE("Adapters whose name, path or files differ have changed", "[adapter_registry]") {
  ScratchDirectory scratch;
  for (const std::string name : {"one", "two"}) {
    std::filesystem::create_directory(scratch / name);
    WriteText(scratch / (name + "/adapter_config.json"), "{}");
  }
  const AdapterSource one{"one", scratch / "one"}, two{"two", scratch / "two"};
  AdapterRegistry registry;
  registry.Set({ReadNothing(one), ReadNothing(two)});
  CHECK(registry.HasExactly(std::vector{one, two}));
  CHECK(registry.HasExactly(std::vector{two, one}));
  CHECK_FALSE(registry.HasExactly(std::vector{one}));
  CHECK_FALSE(registry.HasExactly(std::vector{one, two, AdapterSource{"three", one.path}}));
  CHECK_FALSE(registry.HasExactly(std::vector{one, AdapterSource{"two", one.path}}));
  WriteText(scratch / "two/adapter_config.json", "{ }");
  const std::vector<AdapterHandle> unchanged = registry.Unchanged(std::vector{one, two});
  CHECK((unchanged[0] == *registry.Find("one") && unchanged[1] == nullptr));
  CHECK_FALSE(registry.HasExactly(std::vector{one, two}));
}

}  // namespace
}  // namespace quintet
