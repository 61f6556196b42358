#include "models/tokenizers/added_tokens.h"

#include <random>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace quintet {
namespace {

using Segments = std::vector<std::vector<int64_t>>;  // begin, end, id

Segments Split(const AddedTokens& added, const std::string& text) {
  Segments segments;
  for (const auto& segment : added.Split(text, AddedTokens::Text::kRaw)) {
    segments.push_back(
        {static_cast<int64_t>(segment.begin), static_cast<int64_t>(segment.end), segment.id});
  }
  return segments;
}

// The algorithm of Hugging Face's AddedVocabulary for ASCII text: tries all tokens at each byte.
Segments PlainSplit(const std::vector<AddedToken>& tokens, const std::string& text) {
  const auto is_word = [&](size_t at) { return at < text.size() && text[at] >= 'a'; };
  Segments segments;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* longest = nullptr;
    for (const AddedToken& token : tokens) {
      if (text.compare(at, token.content.size(), token.content) != 0) continue;
      if (longest == nullptr || token.content.size() > longest->content.size()) longest = &token;
    }
    if (longest == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + longest->content.size();
    at = end;
    if (longest->single_word && ((begin > 0 && is_word(begin - 1)) || is_word(end))) continue;
    if (longest->lstrip) {
      while (begin > done && text[begin - 1] == ' ') --begin;
      begin = std::max(begin, done);
    }
    if (longest->rstrip) {
      while (end < text.size() && text[end] == ' ') ++end;
    }
    if (done < begin)
      segments.push_back({static_cast<int64_t>(done), static_cast<int64_t>(begin), -1});
    segments.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(end), longest->id});
    done = end;
  }
  if (done < text.size())
    segments.push_back({static_cast<int64_t>(done), static_cast<int64_t>(text.size()), -1});
  return segments;
}

TEST_CASE("Added tokens with any flags split texts like a naive search", "[tokenizer]") {
  std::mt19937 random(5);
  const auto spell = [&](size_t most) {
    std::string text(1 + random() % most, ' ');
    for (char& c : text) c = " ab-"[random() % 4];
    return text;
  };
  size_t cut = 0;
  for (int round = 0; round < 2000; ++round) {
    AddedTokens added;
    std::vector<AddedToken> tokens;
    for (int32_t id = 0; id < 1 + round % 7; ++id) {
      AddedToken token;
      token.id = id;
      token.content = spell(5);
      token.single_word = random() % 4 == 0;
      token.lstrip = random() % 3 == 0;
      token.rstrip = random() % 3 == 0;
      if (added.FindContent(token.content) != nullptr) continue;
      tokens.push_back(token);
      added.Add(token);
    }
    REQUIRE(added.Finish(nullptr).ok());
    const std::string text = spell(60);
    const Segments expected = PlainSplit(tokens, text);
    cut += expected.size();
    if (Split(added, text) != expected) {
      CAPTURE(text);
      CHECK(Split(added, text) == expected);
    }
  }
  CHECK(cut > 10000);
}

TEST_CASE("A run of white space is scanned once for all rstrip tokens in it", "[tokenizer]") {
  AddedTokens added;
  AddedToken space;
  space.id = 0;
  space.content = " ";
  space.rstrip = true;
  added.Add(space);
  REQUIRE(added.Finish(nullptr).ok());
  // The text is a run of 2^20 spaces, in which every space is an added token. An implementation
  // that scans to the end of the run from each byte would take 5 * 10^11 steps.
  const size_t size = 1 << 20;
  const auto segments = added.Split(std::string(size, ' '), AddedTokens::Text::kRaw);
  REQUIRE(segments.size() == size);
  CHECK(segments.front().end == size);
  CHECK(segments.back().begin == size - 1);
}

}  // namespace
}  // namespace quintet
