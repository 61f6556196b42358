// Compares ids and texts with those that Hugging Face's transformers and tokenizers produce, for
// tokenizer files of every kind (tests/data/tokenizers, written by tools/tokenizer_oracle.py
// --fixtures).
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "models/checkpoint/json.h"
#include "models/tokenizers/tokenizer.h"
#include "tests/catch.h"

namespace quintet {
namespace {

// One directory for each kind of tokenizer.
std::set<std::string> DirectoriesWithCases() {
  std::set<std::string> directories;
  for (const auto& entry :
       std::filesystem::directory_iterator(QUINTET_SOURCE_DIR "/tests/data/tokenizers")) {
    if (std::filesystem::exists(entry.path() / "cases.jsonl")) {
      directories.insert(entry.path().string());
    }
  }
  return directories;
}

TEST_CASE("Ids and texts equal those of the reference libraries", "[tokenizer]") {
  const std::set<std::string> directories = DirectoriesWithCases();
  CHECK(directories.size() >= 21);
  int cases = 0;
  for (const std::string& directory : directories) {
    CAPTURE(directory);
    const auto tokenizer = Tokenizer::Load(directory);
    INFO(tokenizer.status());
    REQUIRE(tokenizer.ok());
    std::ifstream lines(directory + "/cases.jsonl");
    for (std::string line; std::getline(lines, line); ++cases) {
      const auto expected = ParseJson(line, "case");
      REQUIRE(expected.ok());
      const std::string text = (*expected)["t"];
      CAPTURE(text);
      const std::vector<int32_t> ids = (*tokenizer)->Encode(text, true).value();
      CHECK(ids == (*expected)["i"].get<std::vector<int32_t>>());
      CHECK((*tokenizer)->Decode(ids, true) == (*expected)["s"].get<std::string>());
      if (expected->contains("k"))
        CHECK((*tokenizer)->Decode(ids, false) == (*expected)["k"].get<std::string>());
      std::vector<int32_t> spanned;
      bool in_text = true;
      const std::vector<TokenSpan> spans = (*tokenizer)->EncodeWithSpans(text, true).value();
      for (const TokenSpan& span : spans) {
        spanned.push_back(span.id);
        in_text &= span.begin_byte <= span.end_byte && span.end_byte <= text.size();
      }
      CHECK(spanned == ids);
      CHECK(in_text);
    }
  }
  CHECK(cases == 2971);
}

}  // namespace
}  // namespace quintet
