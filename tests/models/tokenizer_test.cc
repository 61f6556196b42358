// Whole tokenizers on hand-checked facts. tokenizer_oracle_test.cc compares with the reference
// libraries.
#include "models/tokenizer.h"

#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/models/scratch_directory.h"

namespace quintet {
namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<const Tokenizer> LoadData(const std::string& name) {
  auto tokenizer =
      Tokenizer::Load(std::string(QUINTET_SOURCE_DIR) + "/tests/data/tokenizers/" + name);
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

std::vector<std::string> Pieces(const Tokenizer& tokenizer, const Ids& ids) {
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(tokenizer.Piece(id));
  return pieces;
}

TEST_CASE("A char model with user-defined symbols appends eos and decodes phonemes",
          "[tokenizer]") {
  const auto tokenizer = LoadData("g2p");
  CHECK(Pieces(*tokenizer, tokenizer->Encode("wagner", true).value()) ==
        std::vector<std::string>{"\u2581", "w", "a", "g", "n", "e", "r", "</s>"});
  const Ids phonemes = tokenizer->Encode("W AE1 G N ER0", true).value();
  CHECK(Pieces(*tokenizer, phonemes) == std::vector<std::string>{"\u2581", "W", "\u2581", "AE1",
                                                                 "\u2581", "G", "\u2581", "N",
                                                                 "\u2581", "ER0", "</s>"});
  CHECK(tokenizer->Decode(phonemes, true) == "W AE1 G N ER0");
  CHECK(tokenizer->eos_id() == 1);
  CHECK(tokenizer->pad_id() == 0);
  CHECK(tokenizer->unk_id() == 2);
  CHECK(tokenizer->IsSpecial(1));
  CHECK_FALSE(tokenizer->IsSpecial(3));
}

TEST_CASE("The T5 family's sentinels count down from the highest id", "[tokenizer]") {
  const auto tokenizer = LoadData("g2p");
  CHECK(tokenizer->vocab_size() == 202);
  CHECK(tokenizer->PieceToId("<extra_id_0>") == 201);
  CHECK(tokenizer->PieceToId("<extra_id_99>") == 102);
  const Ids ids = tokenizer->Encode("a<extra_id_1>b", true).value();
  CHECK(Pieces(*tokenizer, ids) ==
        std::vector<std::string>{"\u2581", "a", "<extra_id_1>", "\u2581", "b", "</s>"});
  CHECK(tokenizer->Encode("a</s>", true).value() == tokenizer->Encode("a", true).value());
}

TEST_CASE("GPT-2's vocabulary", "[tokenizer]") {
  const auto tokenizer = LoadData("gpt2");
  CHECK(tokenizer->Encode("Hello world, it's   a test!", true).value() ==
        Ids{15496, 995, 11, 340, 338, 220, 220, 257, 1332, 0});
  CHECK(tokenizer->Encode("a<|endoftext|>b", true).value() == Ids{64, 50256, 65});
  CHECK(tokenizer->Decode(tokenizer->Encode("na\u00EFve \U0001F600", true).value(), true) ==
        "na\u00EFve \U0001F600");
  CHECK(tokenizer->vocab_size() == 50257);
  CHECK(tokenizer->eos_id() == 50256);
  CHECK(tokenizer->bos_id() == 50256);
  CHECK(tokenizer->pad_id() == -1);
}

TEST_CASE("Spans are bytes of the text as given", "[tokenizer]") {
  const auto tokenizer = LoadData("gpt2");
  const std::string text = "a \xFF\u00E9";  // the invalid byte becomes U+FFFD
  std::string covered;
  const std::vector<TokenSpan> spans = tokenizer->EncodeWithSpans(text, true).value();
  for (const TokenSpan& span : spans) {
    CHECK(span.begin_byte <= span.end_byte);
    CHECK(span.end_byte <= text.size());
    covered = text.substr(0, span.end_byte);
  }
  CHECK(covered == text);
  CHECK(tokenizer->Encode(text, true).value() == tokenizer->Encode("a \uFFFD\u00E9", true).value());
}

TEST_CASE("Spans of truncated ids end as the ids do", "[tokenizer]") {
  const std::vector<TokenSpan> spans = {{5, 0, 2}, {6, 2, 4}, {7, 4, 6}, {1, 6, 6}};
  const auto cut = [&spans](const std::vector<int32_t>& ids) {
    std::vector<std::pair<int32_t, uint32_t>> result;
    for (const TokenSpan& span : CutSpans(spans, ids)) result.emplace_back(span.id, span.end_byte);
    return result;
  };
  using Ends = std::vector<std::pair<int32_t, uint32_t>>;
  CHECK(cut({5, 6, 7, 1}) == Ends{{5, 2}, {6, 4}, {7, 6}, {1, 6}});
  CHECK(cut({5, 1}) == Ends{{5, 2}, {1, 6}});  // the eos kept its place
  CHECK(cut({5, 6}) == Ends{{5, 2}, {6, 4}});
  CHECK(cut({1}) == Ends{{1, 6}});
}

TEST_CASE("ByT5 needs only its name", "[tokenizer]") {
  ScratchDirectory directory;
  WriteText(directory / "tokenizer_config.json", R"({"tokenizer_class": "ByT5Tokenizer"})");
  const auto loaded = Tokenizer::Load(directory / "");
  REQUIRE(loaded.ok());
  const Tokenizer& tokenizer = **loaded;
  CHECK(tokenizer.Encode("h\u00E9", true).value() == Ids{107, 198, 172, 1});
  CHECK(tokenizer.Encode("a <extra_id_0></s>", true).value() == Ids{100, 35, 259, 1});
  CHECK(tokenizer.Decode({107, 198, 172, 198, 1}, true) == "h\u00E9");
  CHECK(tokenizer.vocab_size() == 384);
  CHECK(tokenizer.Encode("", true).value() == Ids{1});
}

TEST_CASE("A directory without a tokenizer", "[tokenizer]") {
  ScratchDirectory directory;
  CHECK(Tokenizer::Load(directory / "").status().code() == absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace quintet
