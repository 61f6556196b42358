// Complete tokenizers, checked against facts verified by hand. tokenizer_oracle_test.cc compares
// with the reference libraries.
#include "models/tokenizers/tokenizer.h"

#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/models/scratch_directory.h"
#include "tests/models/tokenizers/sentencepiece.pb.h"

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

TEST_CASE("A spiece.model gives the tokens of transformers' T5Tokenizer", "[tokenizer]") {
  const auto tokenizer = LoadData("g2p");
  CHECK(Pieces(*tokenizer, tokenizer->Encode("wagner", true).value()) ==
        std::vector<std::string>{"\u2581", "w", "a", "g", "n", "e", "r", "</s>"});
  // User-defined symbols (here AE1 and ER0) are matched before the rest of the text is split into
  // pieces. The space before such a symbol becomes no piece.
  CHECK(
      Pieces(*tokenizer, tokenizer->Encode("W AE1 G N ER0", true).value()) ==
      std::vector<std::string>{"\u2581", "W", "AE1", "\u2581", "G", "\u2581", "N", "ER0", "</s>"});
  Ids phonemes;
  for (const char* piece : {"\u2581", "W", "\u2581", "AE1", "\u2581", "G", "</s>"}) {
    phonemes.push_back(tokenizer->PieceToId(piece));
  }
  CHECK(tokenizer->Decode(phonemes, true) == "W AE1 G");
  CHECK(tokenizer->eos_id() == 1);
  CHECK(tokenizer->pad_id() == 0);
  CHECK(tokenizer->unk_id() == 2);
  CHECK(tokenizer->IsSpecial(1));
  CHECK_FALSE(tokenizer->IsSpecial(3));
}

TEST_CASE("The tokenizer of deploy/models/g2p splits words and phonemes as in training",
          "[tokenizer]") {
  const auto loaded = Tokenizer::Load(std::string(QUINTET_SOURCE_DIR) + "/deploy/models/g2p");
  REQUIRE(loaded.ok());
  const Tokenizer& tokenizer = **loaded;
  CHECK(Pieces(tokenizer, tokenizer.Encode("wagner", true).value()) ==
        std::vector<std::string>{"\u2581", "w", "a", "g", "n", "e", "r", "</s>"});
  const Ids phonemes = tokenizer.Encode("W AE1 G N ER0", true).value();
  CHECK(Pieces(tokenizer, phonemes) == std::vector<std::string>{"\u2581", "W", "\u2581", "AE1",
                                                                "\u2581", "G", "\u2581", "N",
                                                                "\u2581", "ER0", "</s>"});
  CHECK(tokenizer.Decode(phonemes, true) == "W AE1 G N ER0");
  CHECK(tokenizer.vocab_size() == 102);
}

TEST_CASE("The T5 family's sentinels count down from the highest id", "[tokenizer]") {
  const auto tokenizer = LoadData("g2p");
  CHECK(tokenizer->vocab_size() == 202);
  CHECK(tokenizer->PieceToId("<extra_id_0>") == 201);
  CHECK(tokenizer->PieceToId("<extra_id_99>") == 102);
  const Ids ids = tokenizer->Encode("a<extra_id_1>b", true).value();
  CHECK(Pieces(*tokenizer, ids) ==
        std::vector<std::string>{"\u2581", "a", "<extra_id_1>", "\u2581", "b", "</s>"});
  CHECK(Pieces(*tokenizer, tokenizer->Encode("a</s>", true).value()) ==
        std::vector<std::string>{"\u2581", "a", "</s>", "</s>"});
}

TEST_CASE("GPT-2 encodes and decodes known texts", "[tokenizer]") {
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

TEST_CASE("Spans are bytes of the original text", "[tokenizer]") {
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

TEST_CASE("TruncateSpans keeps the spans of truncated ids", "[tokenizer]") {
  const std::vector<TokenSpan> spans = {{5, 0, 2}, {6, 2, 4}, {7, 4, 6}, {1, 6, 6}};
  const auto cut = [&spans](const std::vector<int32_t>& ids) {
    std::vector<std::pair<int32_t, uint32_t>> result;
    for (const TokenSpan& span : TruncateSpans(spans, ids))
      result.emplace_back(span.id, span.end_byte);
    return result;
  };
  using Ends = std::vector<std::pair<int32_t, uint32_t>>;
  CHECK(cut({5, 6, 7, 1}) == Ends{{5, 2}, {6, 4}, {7, 6}, {1, 6}});
  CHECK(cut({5, 1}) == Ends{{5, 2}, {1, 6}});  // eos kept its span
  CHECK(cut({5, 6}) == Ends{{5, 2}, {6, 4}});
  CHECK(cut({1}) == Ends{{1, 6}});
}

// A tokenizer.json that gives different ids with each tokenizer class.
constexpr char kUnigramJson[] = R"({
    "added_tokens": [{"id": 3, "content": "<extra_id_0>", "special": true}],
    "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<pad>", 0], ["</s>", 0], ["<unk>", 0],
        ["<extra_id_0>", 0], ["\u2581", -3], ["\u2581b", -2], ["b", -2]]},
    "normalizer": {"type": "Lowercase"},
    "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"}})";
constexpr char kBpeJson[] = R"({
    "model": {"type": "BPE", "vocab": {"b": 0, "\u0120": 1, "\u0120b": 2}, "merges": ["\u0120 b"]},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}})";

Ids EncodeWith(const char* tokenizer, const char* tokenizer_config, const char* config,
               const std::string& text) {
  ScratchDirectory directory;
  WriteText(directory / "tokenizer.json", tokenizer);
  WriteText(directory / "tokenizer_config.json", tokenizer_config);
  WriteText(directory / "config.json", config);
  const auto loaded = Tokenizer::Load(directory / "");
  INFO(loaded.status());
  REQUIRE(loaded.ok());
  return (*loaded)->Encode(text, true).value();
}

TEST_CASE("The declared class decides which parts of tokenizer.json are used", "[tokenizer]") {
  const Ids as_saved = {5, 3, 6};    // word start only at the beginning of the text
  const Ids rebuilt = {5, 3, 5, 1};  // word start before every word, and eos
  const std::string text = "b<extra_id_0>b";
  const struct {
    const char* tokenizer_config;
    const char* config;
    const Ids& ids;
  } cases[] = {
      {"{}", "{}", as_saved},
      {"{}", R"({"model_type": "t5"})", rebuilt},
      {"{}", R"({"model_type": "umt5"})", as_saved},
      {"{}", R"({"model_type": "umt5", "tokenizer_class": "T5Tokenizer"})", as_saved},
      {"{}", R"({"tokenizer_class": "T5Tokenizer"})", rebuilt},
      {R"({"tokenizer_class": "T5Tokenizer", "legacy": false})", "{}", rebuilt},
      {R"({"tokenizer_class": "T5TokenizerFast"})", R"({"model_type": "mt5"})", rebuilt},
      {R"({"tokenizer_class": "PreTrainedTokenizerFast"})", R"({"model_type": "t5"})", as_saved},
      {R"({"tokenizer_class": "GPT2Tokenizer"})", R"({"model_type": "t5"})", as_saved},
  };
  for (const auto& test : cases) {
    CAPTURE(test.tokenizer_config, test.config);
    CHECK(EncodeWith(kUnigramJson, test.tokenizer_config, test.config, text) == test.ids);
  }
  // T5Tokenizer ignores the normalizer of tokenizer.json, which the default class applies.
  CHECK(EncodeWith(kUnigramJson, "{}", "{}", "B") == Ids{5});
  CHECK(EncodeWith(kUnigramJson, R"({"tokenizer_class": "T5Tokenizer"})", "{}", "B") ==
        Ids{4, 2, 1});
}

TEST_CASE("GPT2Tokenizer takes add_prefix_space from tokenizer_config.json", "[tokenizer]") {
  constexpr char kGpt2[] = R"({"model_type": "gpt2"})";
  CHECK(EncodeWith(kBpeJson, "{}", kGpt2, "b") == Ids{0});
  CHECK(EncodeWith(kBpeJson, R"({"add_prefix_space": true})", kGpt2, "b") == Ids{2});
  CHECK(EncodeWith(kBpeJson,
                   R"({"add_prefix_space": true, "tokenizer_class": "PreTrainedTokenizerFast"})",
                   kGpt2, "b") == Ids{0});
}

TEST_CASE("split_special_tokens disables the matching of special tokens", "[tokenizer]") {
  const std::string text = "b<extra_id_0>";
  CHECK(EncodeWith(kUnigramJson, "{}", "{}", text) == Ids{5, 3});
  CHECK(EncodeWith(kUnigramJson, R"({"split_special_tokens": true})", R"({"model_type": "t5"})",
                   "</s>") == Ids{4, 1, 1});
  CHECK(EncodeWith(kUnigramJson, R"({"split_special_tokens": true, "pad_token": "<"})", "{}",
                   "b<b") == Ids{5, 0, 6});
}

TEST_CASE("added_tokens_decoder replaces the older files", "[tokenizer]") {
  const auto load = [](const char* tokenizer_config) {
    ScratchDirectory directory;
    WriteText(directory / "tokenizer.json", kBpeJson);
    WriteText(directory / "tokenizer_config.json", tokenizer_config);
    WriteText(directory / "special_tokens_map.json", R"({"eos_token": "<map>"})");
    WriteText(directory / "added_tokens.json", R"({"<map>": 3, "<new>": 4})");
    auto loaded = Tokenizer::Load(directory / "");
    REQUIRE(loaded.ok());
    return *std::move(loaded);
  };
  const auto older = load(R"({"eos_token": "<config>"})");
  CHECK(older->PieceToId("<new>") == 4);
  CHECK(older->PieceToId("<map>") == 3);
  CHECK(older->eos_id() == 3);
  CHECK(older->IsSpecial(3));
  CHECK_FALSE(older->IsSpecial(4));
  CHECK(older->PieceToId("<config>") == -1);

  const auto newer = load(R"({"eos_token": "<config>", "extra_special_tokens": ["<extra>"],
               "added_tokens_decoder": {"3": {"content": "<config>", "special": false}}})");
  CHECK(newer->PieceToId("<new>") == -1);
  CHECK(newer->PieceToId("<map>") == -1);
  CHECK(newer->eos_id() == 3);
  CHECK(newer->IsSpecial(3));  // because it is a named token
  CHECK(newer->PieceToId("<extra>") == 4);
}

TEST_CASE("A sentinel that is a piece of spiece.model keeps its id", "[tokenizer]") {
  spm::Model model;
  for (const char* piece : {"<pad>", "</s>", "<unk>", "<extra_id_1>", "\u2581"}) {
    model.add_pieces()->set_piece(piece);
  }
  ScratchDirectory directory;
  WriteText(directory / "spiece.model", model.SerializeAsString());
  WriteText(directory / "tokenizer_config.json", R"({"extra_ids": 3})");
  const auto tokenizer = Tokenizer::Load(directory / "");
  REQUIRE(tokenizer.ok());
  CHECK((*tokenizer)->vocab_size() == 7);
  CHECK((*tokenizer)->Encode("<extra_id_0><extra_id_1><extra_id_2>", true).value() ==
        Ids{6, 3, 5, 1});
}

TEST_CASE("Decode does not skip a special token whose text differs", "[tokenizer]") {
  ScratchDirectory directory;
  WriteText(directory / "tokenizer.json", R"({
      "added_tokens": [{"id": 1, "content": "<A>", "special": true, "normalized": true},
                       {"id": 2, "content": "<b>", "special": true, "normalized": true}],
      "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0]]},
      "normalizer": {"type": "Lowercase"}})");
  const auto tokenizer = Tokenizer::Load(directory / "");
  REQUIRE(tokenizer.ok());
  CHECK((*tokenizer)->Decode(Ids{1, 2}, true) == "<a>");
  CHECK((*tokenizer)->Decode(Ids{1, 2}, false) == "<a> <b>");
}

TEST_CASE("ByT5 needs only its class name", "[tokenizer]") {
  ScratchDirectory directory;
  WriteText(directory / "tokenizer_config.json", R"({"tokenizer_class": "ByT5Tokenizer"})");
  const auto loaded = Tokenizer::Load(directory / "");
  REQUIRE(loaded.ok());
  const Tokenizer& tokenizer = **loaded;
  CHECK(tokenizer.Encode("h\u00E9", true).value() == Ids{107, 198, 172, 1});
  CHECK(tokenizer.Encode("a <extra_id_0></s>", true).value() == Ids{100, 35, 259, 1});
  CHECK(tokenizer.Decode(Ids{107, 198, 172, 198, 1}, true) == "h\u00E9");
  CHECK(tokenizer.vocab_size() == 384);
  CHECK(tokenizer.Encode("", true).value() == Ids{1});
}

TEST_CASE("A directory without a tokenizer is NOT_FOUND", "[tokenizer]") {
  ScratchDirectory directory;
  CHECK(Tokenizer::Load(directory / "").status().code() == absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace quintet
