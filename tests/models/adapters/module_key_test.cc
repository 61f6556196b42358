#include "models/adapters/module_key.h"

#include <string>

#include "tests/catch.h"

namespace quintet {
namespace {

constexpr char kModule[] = "encoder.block.1.layer.0.SelfAttention.q";

bool MatchesName(const std::string& key, const std::string& name) {
  const absl::StatusOr<ModuleKey> compiled = ModuleKey::Compile(key, "rank_pattern");
  REQUIRE(compiled.ok());
  return compiled->Matches(name);
}

TEST_CASE("A suffix of a module begins at a dot") {
  CHECK(EndsWithModule(kModule, "q"));
  CHECK(EndsWithModule(kModule, "SelfAttention.q"));
  CHECK(EndsWithModule(kModule, kModule));
  CHECK(!EndsWithModule(kModule, "Attention.q"));
  CHECK(!EndsWithModule(kModule, ""));
  CHECK(!EndsWithModule("q", "x.q"));
}

TEST_CASE("A regular expression of modules matches whole names") {
  const auto matches = [](const std::string& regex, const std::string& name) {
    const auto compiled = ModuleRegex::Compile(regex, "target_modules");
    REQUIRE(compiled.ok());
    return compiled->Matches(name);
  };
  CHECK(matches(".*SelfAttention.(q|v)$", kModule));
  CHECK(matches("encoder\\.block\\.\\d+\\..*q", kModule));
  CHECK(matches("x|.*q", kModule));
  CHECK(!matches("SelfAttention.q", kModule));
  CHECK(!matches("encoder", kModule));
  CHECK(!matches(".*decoder.*", kModule));
}

TEST_CASE("Keys of patterns match from a dot to the end") {
  CHECK(MatchesName("q", kModule));
  CHECK(MatchesName("block.1.layer.0.SelfAttention.q", kModule));
  CHECK(MatchesName("SelfAttention-q", "SelfAttention-q"));
  CHECK(MatchesName("SelfAttention.q", "x.SelfAttention_q"));  // '.' matches any character
  CHECK(!MatchesName("Attention.q", kModule));
  CHECK(!MatchesName("block.0.layer.0.SelfAttention.q", kModule));
  CHECK(MatchesName("block\\.[0-3]\\..*(q|k)", kModule));
  CHECK(MatchesName("^encoder.*", kModule));
  CHECK(!MatchesName("^block.*", kModule));
}

TEST_CASE("Regular expressions outside the subset, and long ones, are refused") {
  for (const char* regex : {"(?<name>q)", "q(?=.*x)", "(q)\\1", "a)(?:b", "[q", "(q"}) {
    INFO(regex);
    const absl::Status status = ModuleRegex::Compile(regex, "target_modules").status();
    CHECK(absl::IsUnimplemented(status));
    CHECK(std::string(status.message()).find("list the names") != std::string::npos);
  }
  CHECK(absl::IsInvalidArgument(ModuleRegex::Compile("", "x").status()));
  CHECK(absl::IsInvalidArgument(ModuleRegex::Compile(std::string(1025, 'q'), "x").status()));
  CHECK(absl::IsInvalidArgument(ModuleKey::Compile(std::string(513, 'q'), "x").status()));
}

TEST_CASE("An expression that makes backtracking engines slow is matched in linear time") {
  const auto regex = ModuleRegex::Compile("(a*)*(a*)*(a*)*b", "target_modules");
  if (regex.ok()) CHECK(!regex->Matches(std::string(20000, 'a')));
}

}  // namespace
}  // namespace quintet
