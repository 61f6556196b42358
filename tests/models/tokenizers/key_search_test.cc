#include "models/tokenizers/key_search.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace quintet {
namespace {

using Keys = std::vector<std::string>;

KeySearch Search(const Keys& keys) {
  std::vector<std::pair<std::string_view, int32_t>> pairs;
  for (const std::string& key : keys) pairs.emplace_back(key, static_cast<int32_t>(pairs.size()));
  return KeySearch(pairs);
}

// Compares the matches that KeySearch finds in `text` with those of a naive search that tries every
// key at every byte.
void CheckAgainstPlainSearch(const Keys& keys, const std::string& text) {
  KeyMatches matches = Search(keys).Find(text);
  for (size_t at = 0; at < text.size(); ++at) {
    size_t longest = 0;
    int32_t value = -1;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (keys[i].size() <= longest || text.compare(at, keys[i].size(), keys[i]) != 0) continue;
      longest = keys[i].size();
      value = static_cast<int32_t>(i);
    }
    const KeyMatch* match = matches.From(at);
    const bool found = match != nullptr && match->begin == at;
    if (found != (longest > 0) || (found && (match->length != longest || match->value != value))) {
      CAPTURE(keys, text, at, longest, value);
      FAIL("expected another longest key here");
    }
  }
  CHECK(matches.From(text.size()) == nullptr);
}

TEST_CASE("An empty key set or text has no matches", "[tokenizer]") {
  CHECK(KeySearch().Find("abc").From(0) == nullptr);
  CHECK(Search({}).Find("abc").From(0) == nullptr);
  CHECK(Search({"a"}).Find("").From(0) == nullptr);
}

TEST_CASE("From returns the next match, LengthAt only one at the given byte", "[tokenizer]") {
  KeyMatches matches = Search({"bc", "b", "e"}).Find("abcde");
  CHECK(matches.LengthAt(0) == 0);
  REQUIRE(matches.From(0) != nullptr);
  CHECK(matches.From(0)->begin == 1);
  CHECK(matches.From(0)->value == 0);
  CHECK(matches.LengthAt(1) == 2);
  CHECK(matches.From(3)->value == 2);
  CHECK(matches.LengthAt(4) == 1);
  CHECK(matches.From(5) == nullptr);
}

TEST_CASE("Keys with common prefixes, suffixes and infixes are found like by a naive search",
          "[tokenizer]") {
  std::mt19937 random(11);
  const auto spell = [&](size_t most, uint32_t letters) {
    std::string text(1 + random() % most, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % letters);
    return text;
  };
  for (int round = 0; round < 400; ++round) {
    const uint32_t letters = 1 + static_cast<uint32_t>(round) % 3;
    Keys keys;
    for (int i = 0; i < 1 + round % 17; ++i)
      keys.push_back(spell(round % 2 == 0 ? 4 : 24, letters));
    // Add prefixes, suffixes and concatenations of other keys.
    const size_t first_ones = round % 5 == 0 ? keys.size() : 0;
    for (size_t i = 0; i < first_ones; i += 2) {
      keys.push_back(keys[i].substr(0, 1 + keys[i].size() / 2));
      keys.push_back(keys[i].substr(keys[i].size() / 2));
      keys.push_back(keys[i] + keys[0]);
    }
    std::erase(keys, "");
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    std::shuffle(keys.begin(), keys.end(), random);
    std::string text = spell(200, letters);
    for (int i = 0; i < 5; ++i) text += keys[random() % keys.size()] + spell(3, letters);
    CheckAgainstPlainSearch(keys, text);
  }
}

TEST_CASE("Keys may hold any bytes", "[tokenizer]") {
  Keys keys;
  for (int byte = 0; byte < 256; byte += 3) keys.push_back(std::string(2, static_cast<char>(byte)));
  std::string text;
  for (int i = 0; i < 2000; ++i) text.push_back(static_cast<char>(i * i % 251 / 2 * 3));
  CheckAgainstPlainSearch(keys, text);
}

TEST_CASE("A long key that almost matches everywhere takes linear time", "[tokenizer]") {
  // The text has 2^20 bytes, and the long key one more. A search that compared the key with the
  // text anew from each byte of the text would need 2^39 steps.
  KeyMatches matches =
      Search({std::string(1 << 20, 'a') + "b", "aa"}).Find(std::string(1 << 20, 'a'));
  size_t places = 0;
  for (size_t at = 0; const KeyMatch* match = matches.From(at); at = match->begin + 1) {
    places += match->length == 2;
  }
  CHECK(places == (1 << 20) - 1);
}

}  // namespace
}  // namespace quintet
