#include "engine/text_stream.h"

#include <random>
#include <span>

#include "tests/catch.h"
#include "tests/engine/engine_harness.h"

namespace quintet {
namespace {

// Decodes like a SentencePiece model with Hugging Face's clean-up. "▁" becomes a space, except at
// the beginning of the text. Consecutive byte tokens are joined; if they are not valid UTF-8, each
// byte becomes U+FFFD. Finally, spaces before punctuation are removed.
class SpacedTokenizer : public PieceTokenizer {
 public:
  using PieceTokenizer::PieceTokenizer;

  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const override {
    std::string text, run;
    for (int32_t id : ids) {
      const std::string piece = Piece(id);
      if (piece.starts_with("<0x")) {
        run.push_back(static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
        continue;
      }
      Flush(&run, &text);
      if (piece.starts_with("<") && skip_special_tokens) continue;
      text += piece;
    }
    Flush(&run, &text);
    ReplaceAll(&text, "▁", " ");
    if (text.starts_with(" ")) text.erase(0, 1);
    for (const char* p : {".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"}) {
      ReplaceAll(&text, std::string(" ") + p, p);
    }
    return text;
  }
  bool IsSpecial(int32_t id) const override {
    const std::string piece = Piece(id);
    return piece.starts_with("<") && !piece.starts_with("<0x");
  }

 private:
  static void Flush(std::string* run, std::string* text) {
    // A simplified UTF-8 check, which accepts characters of one to three bytes: the byte pieces of
    // this test form no four-byte characters.
    bool valid = true;
    for (size_t i = 0; i < run->size();) {
      const uint8_t c = (*run)[i];
      const size_t n = c < 0x80 ? 1 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 0;
      valid = valid && n > 0 && i + n <= run->size();
      for (size_t k = 1; valid && k < n; ++k) valid = ((*run)[i + k] & 0xC0) == 0x80;
      i += n == 0 ? 1 : n;
    }
    for (size_t i = 0; i < run->size(); ++i) {
      *text += valid ? std::string(1, (*run)[i]) : "\xEF\xBF\xBD";
    }
    run->clear();
  }
  static void ReplaceAll(std::string* text, const std::string& from, const std::string& to) {
    for (size_t at = 0; (at = text->find(from, at)) != std::string::npos; at += to.size()) {
      text->replace(at, from.size(), to);
    }
  }
};

const std::vector<std::string> kSpaced{// special tokens
                                       "<pad>", "</s>", "<unk>",
                                       // words
                                       "▁the", "▁", "cat", "▁.", ".", "▁do",
                                       // n't and 's
                                       "▁n't", "n", "'t", "'", "▁'s", "s",
                                       // we've
                                       "▁we", "▁'", "ve",
                                       // others
                                       "▁!", "x",
                                       // bytes
                                       "<0xE2>", "<0x82>", "<0xAC>", "<0xC3>", "<0xA9>", "<0x41>",
                                       // characters
                                       "é", "\xEF\xBF\xBD", "re"};
// Pieces of a byte-level tokenizer. A token is any byte string: it may be part of a UTF-8 character
// or several characters. The first three, which are empty, are the special tokens.
const std::vector<std::string> kBytes{
    "",         "",     "",     "a",        "b",        "ab", " ",  "\xE2", "\x82", "\xAC",
    "\xE2\x82", "\xC3", "\xA9", "\xF0\x9F", "\x98\x80", "é",  "\n", "\n\n", "c"};

struct StreamRun {
  std::string streamed, final_text;
  std::vector<int32_t> ids;
  bool stopped = false;
  size_t pushed = 0;
};

StreamRun Run(const Tokenizer& tokenizer, const TextOptions& options,
              const std::vector<int32_t>& ids, size_t echo = 0) {
  TextStream stream(&tokenizer, options);
  StreamRun run;
  const auto take = [&] {
    const TextStream::Chunk chunk = stream.Take();
    run.streamed += chunk.text;
    run.ids.insert(run.ids.end(), chunk.ids.begin(), chunk.ids.end());
  };
  for (size_t i = 0; i < echo; ++i) stream.PushEcho(ids[i]);
  for (run.pushed = echo; run.pushed < ids.size() && !run.stopped;) {
    run.stopped = stream.Push(ids[run.pushed++]);
    take();
  }
  run.stopped = stream.Finish() || run.stopped;
  take();
  run.final_text = std::string(stream.FinalText());
  return run;
}

// Returns `text` cut at its earliest stop string. Ignores stop strings that begin before byte
// `from`.
std::string Cut(std::string text, size_t from, const TextOptions& options) {
  size_t best = std::string::npos, end = 0;
  for (const std::string& stop : options.stops) {
    const size_t at = text.find(stop, from);
    if (at >= best) continue;
    best = at;
    end = at + (options.include_stop ? stop.size() : 0);
  }
  if (best != std::string::npos) text.resize(end);
  return text;
}

void Fuzz(const Tokenizer& tokenizer, const std::vector<std::string>& stops, int seed, int trials) {
  std::mt19937 random(seed);
  int stopped = 0;
  for (int trial = 0; trial < trials; ++trial) {
    TextOptions options;
    options.skip_special_tokens = random() % 4 != 0;
    options.include_stop = random() % 2 == 0;
    for (const std::string& stop : stops) {
      if (random() % 3 == 0) options.stops.push_back(stop);
    }
    std::vector<int32_t> ids(random() % (trial % 20 == 0 ? 400 : 30));
    const int32_t some = 1 + random() % tokenizer.vocab_size();  // a few tokens only: longer runs
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % some);
    const StreamRun run = Run(tokenizer, options, ids);
    INFO("trial " << trial);
    REQUIRE(run.streamed == run.final_text);
    REQUIRE(run.ids == std::vector<int32_t>(ids.begin(), ids.begin() + run.pushed));
    stopped += run.stopped;
    const std::string whole =
        tokenizer.Decode(std::span(ids).first(run.pushed), options.skip_special_tokens);
    REQUIRE(run.final_text == Cut(whole, 0, options));
    if (!run.stopped) REQUIRE(run.final_text == whole);
  }
  if (!stops.empty()) CHECK(stopped > trials / 20);
}

TEST_CASE("streamed chunks concatenate to the final text, which is the decode of all ids") {
  Fuzz(SpacedTokenizer(kSpaced), {}, 1, 4000);
  Fuzz(*MakeBytesTokenizer(kBytes), {}, 2, 4000);
}

TEST_CASE("stop strings cut the text at their earliest occurrence, also across tokens") {
  Fuzz(SpacedTokenizer(kSpaced), {"cat.", "the cat", "don't", "s", " ", "x x", "€"}, 3, 4000);
  Fuzz(*MakeBytesTokenizer(kBytes), {"ab", "aba", "\n\n", "é", "€", "cab", "😀"}, 4, 4000);
}

TEST_CASE("no text is released that may still change") {
  const SpacedTokenizer tokenizer(kSpaced);
  TextStream stream(&tokenizer, {});
  const auto push = [&stream](const std::string& piece) {
    for (size_t id = 0; id < kSpaced.size(); ++id) {
      if (kSpaced[id] == piece) {
        stream.Push(static_cast<int32_t>(id));
        return stream.Take().text;
      }
    }
    return std::string("no such piece");
  };
  CHECK(push("▁do") == "do");
  CHECK(push("▁") == "");  // may turn into a space before a full stop, which is removed
  CHECK(push("n") == "");
  CHECK(push("'t") == "n't");
  CHECK(push("<0xE2>") == "");
  CHECK(push("<0x82>") == "");
  CHECK(push("<0xAC>") == "");  // the run may continue and become invalid UTF-8
  CHECK(push("cat") == "€cat");
}

TEST_CASE("without a tokenizer ids are released at once") {
  TextStream stream(nullptr, {});
  stream.PushEcho(5);
  CHECK(stream.Take().ids == std::vector<int32_t>{5});
  stream.Push(7);
  stream.Push(8);
  const TextStream::Chunk chunk = stream.Take();
  CHECK(chunk.ids == std::vector<int32_t>{7, 8});
  CHECK(chunk.text.empty());
  CHECK_FALSE(stream.Finish());
  CHECK(stream.FinalText().empty());
}

TEST_CASE("a possible beginning of a stop string is held back until it is ruled out") {
  const auto tokenizer = MakeBytesTokenizer({"", "", "", "S", "T", "O", "P", "x"});
  TextOptions options;
  options.stops = {"STOP"};
  TextStream stream(tokenizer.get(), options);
  const auto push = [&stream](int32_t id) {
    const bool stopped = stream.Push(id);
    return stream.Take().text + (stopped ? "!" : "");
  };
  CHECK(push(7) == "x");
  CHECK(push(3) == "");
  CHECK(push(4) == "");
  CHECK(push(7) == "STx");
  CHECK(push(3) == "");
  CHECK(push(3) == "S");
  CHECK(push(4) == "");
  CHECK(push(5) == "");
  CHECK(push(6) == "!");
  CHECK(stream.FinalText() == "xSTxS");
  CHECK(stream.matched_stop() == "STOP");
}

TEST_CASE("stop strings are not searched in the echo") {
  const auto tokenizer = MakeBytesTokenizer({"", "", "", "a", "b"});
  TextOptions options;
  options.stops = {"ab"};
  const StreamRun run = Run(*tokenizer, options, {3, 4, 3, 4, 3}, 2);
  CHECK(run.stopped);
  CHECK(run.final_text == "ab");
  const StreamRun across = Run(*tokenizer, options, {3, 4, 3}, 1);
  CHECK_FALSE(across.stopped);
  CHECK(across.final_text == "aba");
}

TEST_CASE("long streams keep a short window") {
  // The test decodes 20,000 tokens. It would take minutes if each Push decoded all earlier tokens
  // again.
  const SpacedTokenizer tokenizer(kSpaced);
  std::vector<int32_t> ids;
  std::mt19937 random(9);
  for (int i = 0; i < 20000; ++i) ids.push_back(3 + random() % 16);
  const StreamRun run = Run(tokenizer, {}, ids);
  CHECK(run.final_text == tokenizer.Decode(ids, true));
}

}  // namespace
}  // namespace quintet
