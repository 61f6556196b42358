// Damaged tokenizer files must give a clear error, never a crash. Sanitizers run this test, too.
#include <cstring>
#include <string>
#include <vector>

#include "models/checkpoint/json.h"
#include "models/tokenizers/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/models/scratch_directory.h"
#include "tests/models/tokenizers/sentencepiece.pb.h"

namespace quintet {
namespace {

using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::json;

std::string DataFile(const std::string& name) {
  return ReadText(std::string(QUINTET_SOURCE_DIR) + "/tests/data/tokenizers/" + name);
}

absl::Status LoadStatus(const std::vector<std::pair<std::string, std::string>>& files) {
  ScratchDirectory directory;
  for (const auto& [name, content] : files) WriteText(directory / name, content);
  return Tokenizer::Load(directory / "").status();
}

void CheckRejected(const absl::Status& status, const std::string& file, const std::string& says) {
  CAPTURE(says);
  INFO(status);
  CHECK((status.code() == absl::StatusCode::kInvalidArgument ||
         status.code() == absl::StatusCode::kUnimplemented));
  CHECK_THAT(std::string(status.message()), ContainsSubstring(file) && ContainsSubstring(says));
  CHECK(status.message().size() < 1000);
  CHECK_THAT(std::string(status.message()), !ContainsSubstring("/tmp"));
}

Json SmallBpe() {
  return Json::parse(
      R"({"model": {"type": "BPE", "unk_token": "u", "vocab": {"u": 0, "a": 1, "b": 2, "ab": 3},
                    "merges": [["a", "b"]]},
          "added_tokens": [{"id": 4, "content": "</s>", "special": true}], "normalizer": null,
          "pre_tokenizer": null, "post_processor": null, "decoder": null})");
}

Json SmallUnigram() {
  return Json::parse(
      R"({"model": {"type": "Unigram", "unk_id": 0,
                    "vocab": [["<unk>", 0.0], ["a", -1.5], ["ab", -2]]}})");
}

TEST_CASE("Wrong fields of tokenizer.json are errors", "[tokenizer]") {
  REQUIRE(LoadStatus({{"tokenizer.json", SmallBpe().dump()}}).ok());
  REQUIRE(LoadStatus({{"tokenizer.json", SmallUnigram().dump()}}).ok());
  const struct {
    bool bpe;
    const char* patch;  // JSON pointer
    const char* value;
    const char* says;
  } cases[] = {
      {true, "/model", "null", "model"},
      {true, "/model", "[]", "model"},
      {true, "/model/type", "\"WordPiece\"", "WordPiece"},
      {true, "/model/type", "3", "type: expected a string, got 3"},
      {true, "/model/vocab", "[]", "vocab: expected an object"},
      {true, "/model/vocab/a", "-1", "got -1"},
      {true, "/model/vocab/a", "99999999999999999999", "expected an id"},
      {true, "/model/vocab/a", "4194304", "expected an id in [0, 4194304)"},
      {true, "/model/vocab/a", "1.5", "expected an id, got 1.5"},
      {true, "/model/vocab/a", "2", "id 2 twice"},
      {true, "/model/merges", "null", "merges: expected a list"},
      {true, "/model/merges", "[[\"a\"]]", "merges[0]: expected two pieces"},
      {true, "/model/merges", "[\"a b c\"]", "merges[0]: expected two pieces"},
      {true, "/model/merges", "[[\"a\", \"x\"]]", "expected \"x\" in the vocabulary"},
      {true, "/model/merges", "[[\"b\", \"a\"]]", "expected \"ba\" in the vocabulary"},
      {true, "/model/unk_token", "\"nope\"", "unk_token \"nope\""},
      {true, "/model/dropout", "0.5", "dropout"},
      {true, "/model/byte_fallback", "1", "byte_fallback: expected true or false, got 1"},
      {true, "/added_tokens", "{}", "added_tokens: expected a list"},
      {true, "/added_tokens/0/id", "-4", "id: expected an id in"},
      {true, "/added_tokens/0/id", "1", "expected an id that agrees with the vocabulary, got 1"},
      {true, "/added_tokens/0/content", "7", "content: expected a string, got 7"},
      {true, "/added_tokens/0", "\"x\"", "added_tokens[0]: token: expected an object"},
      {true, "/normalizer", "{\"type\": \"Bert\"}", "type Bert is not supported"},
      {true, "/normalizer", "{}", "normalizer: type: expected a string"},
      {true, "/normalizer", "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"%%%\"}",
       "base64"},
      {true, "/normalizer", "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAAA\"}",
       "at least 8 bytes, got 3"},
      {true, "/normalizer",
       "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"/////wAAAAAAAAAA\"}",
       "got 4294967295"},
      {true, "/normalizer",
       "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"(?<=a)b\"}, \"content\": \"\"}",
       "(?<=a)b"},
      {true, "/normalizer", "{\"type\": \"Replace\", \"pattern\": \"a\", \"content\": \"\"}",
       "pattern: expected"},
      {true, "/normalizer", "{\"type\": \"Sequence\", \"normalizers\": [null]}", "normalizers[0]"},
      {true, "/pre_tokenizer",
       "{\"type\": \"Split\", \"pattern\": {\"String\": \" \"}, \"behavior\": \"Sideways\"}",
       "Sideways"},
      {true, "/pre_tokenizer", "{\"type\": \"Metaspace\", \"replacement\": \"ab\"}",
       "replacement: expected one character"},
      {true, "/pre_tokenizer",
       "{\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"x\"}",
       "always, first or never"},
      {true, "/decoder", "{\"type\": \"Strip\", \"content\": \" \", \"start\": -1, \"stop\": 0}",
       "counts >= 0"},
      {true, "/decoder", "{\"type\": \"CTC\"}", "type CTC is not supported"},
      {true, "/post_processor", "{\"type\": \"TemplateProcessing\", \"single\": []}",
       "Sequence \"A\""},
      {true, "/post_processor",
       "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"x\"}}]}",
       "x: ids"},
      {true, "/post_processor",
       "{\"type\": \"RobertaProcessing\", \"cls\": [\"x\", -1], \"sep\": [\"x\", 1]}",
       "cls: expected an id"},
      {false, "/model/vocab", "[]", "vocab: expected a list"},
      {false, "/model/vocab/1", "[\"a\"]", "vocab[1]: expected [piece, score]"},
      {false, "/model/vocab/1", "[\"a\", \"x\"]", "vocab[1]: expected [piece, score]"},
      {false, "/model/vocab/1", "[\"ab\", 1]", "\"ab\" twice"},
      {false, "/model/unk_id", "3", "unk_id: expected an id in [0, 3), got 3"},
      {false, "/model/unk_id", "-1", "got -1"},
      {false, "/model/unk_id", "null", "unk_id"},
  };
  for (const auto& test : cases) {
    CAPTURE(test.patch, test.value);
    Json json = test.bpe ? SmallBpe() : SmallUnigram();
    json[Json::json_pointer(test.patch)] = Json::parse(test.value);
    CheckRejected(LoadStatus({{"tokenizer.json", json.dump()}}), "tokenizer.json", test.says);
  }
}

TEST_CASE("A tokenizer.json with bad JSON or beyond a size limit is an error", "[tokenizer]") {
  const std::string good = SmallBpe().dump();
  for (size_t size = 0; size < good.size(); size += 7) {
    CheckRejected(LoadStatus({{"tokenizer.json", good.substr(0, size)}}), "tokenizer.json",
                  "not JSON at byte");
  }
  CheckRejected(LoadStatus({{"tokenizer.json", good + "x"}}), "tokenizer.json", "not JSON");
  CheckRejected(LoadStatus({{"tokenizer.json", std::string(1 << 20, '[')}}), "tokenizer.json",
                "nesting deeper");
  CheckRejected(LoadStatus({{"tokenizer.json", R"({"model": {}, "model": {}})"}}), "tokenizer.json",
                "\"model\" twice");
  CheckRejected(LoadStatus({{"tokenizer.json", R"({"model": {"vocab": {"a": 0, "a": 1}}})"}}),
                "tokenizer.json", "\"a\" twice");
  CheckRejected(LoadStatus({{"tokenizer.json", R"({"model": {"vocab": [["a", 1e999]]}})"}}),
                "tokenizer.json", "number overflow");
  CheckRejected(LoadStatus({{"tokenizer.json", R"({"model": {"vocab": [["a", NaN]]}})"}}),
                "tokenizer.json", "not JSON");
  CheckRejected(LoadStatus({{"tokenizer.json", "{\"a\": \"\xFF\"}"}}), "tokenizer.json", "UTF-8");
  Json deep = SmallBpe();
  Json step = {{"type", "NFC"}};
  for (int i = 0; i < 40; ++i) step = {{"type", "Sequence"}, {"normalizers", Json::array({step})}};
  deep["normalizer"] = step;
  CheckRejected(LoadStatus({{"tokenizer.json", deep.dump()}}), "tokenizer.json", "nesting deeper");
  Json long_piece = SmallBpe();
  long_piece["model"]["vocab"][std::string(4097, 'a')] = 9;
  CheckRejected(LoadStatus({{"tokenizer.json", long_piece.dump()}}), "tokenizer.json",
                "at most 4096 bytes, got 4097");
  Json long_unigram = SmallUnigram();
  long_unigram["model"]["vocab"].push_back({std::string(257, 'a'), -3});
  CheckRejected(LoadStatus({{"tokenizer.json", long_unigram.dump()}}),
                "tokenizer.json: model: vocab",
                "piece 3: expected at most 256 bytes in a unigram model, got 257");
}

spm::Model SmallModel() {
  spm::Model model;
  const auto add = [&](const char* piece, float score, int type) {
    auto* added = model.add_pieces();
    added->set_piece(piece);
    added->set_score(score);
    added->set_type(type);
  };
  add("<unk>", 0, 2);
  add("</s>", 0, 3);
  add("a", -1, 1);
  add("\u2581", -2, 1);
  return model;
}

TEST_CASE("Wrong fields of spiece.model are errors", "[tokenizer]") {
  REQUIRE(LoadStatus({{"spiece.model", SmallModel().SerializeAsString()}}).ok());
  const std::pair<const char*, void (*)(spm::Model*)> cases[] = {
      {"pieces: expected more than 2, the id of T5's unknown token, got 0",
       [](spm::Model* m) { m->clear_pieces(); }},
      {"expected more than 2, the id of T5's unknown token, got 2",
       [](spm::Model* m) { m->mutable_pieces()->DeleteSubrange(2, 2); }},
      {"piece 2: expected a spelling", [](spm::Model* m) { m->mutable_pieces(2)->clear_piece(); }},
      {"piece 2: expected UTF-8", [](spm::Model* m) { m->mutable_pieces(2)->set_piece("\xFF"); }},
      {"piece 2: expected a finite score",
       [](spm::Model* m) { m->mutable_pieces(2)->set_score(NAN); }},
      {"piece 2: expected a finite score",
       [](spm::Model* m) { m->mutable_pieces(2)->set_score(-INFINITY); }},
      {"piece 2: type: expected 1 to 6, got 7",
       [](spm::Model* m) { m->mutable_pieces(2)->set_type(7); }},
      {"piece 2: type: expected 1 to 6, got -1",
       [](spm::Model* m) { m->mutable_pieces(2)->set_type(-1); }},
      {"\"a\" twice", [](spm::Model* m) { m->mutable_pieces(3)->set_piece("a"); }},
      {"at most 4096 bytes",
       [](spm::Model* m) { m->mutable_pieces(3)->set_piece(std::string(5000, 'x')); }},
      {"piece 3: expected at most 256 bytes in a unigram model, got 257",
       [](spm::Model* m) { m->mutable_pieces(3)->set_piece(std::string(257, 'x')); }},
      {"at least 8 bytes",
       [](spm::Model* m) { m->mutable_normalizer_spec()->set_precompiled_charsmap("abc"); }},
      {"got 1684234849",
       [](spm::Model* m) { m->mutable_normalizer_spec()->set_precompiled_charsmap("abcdefgh"); }},
      {"end in NUL",
       [](spm::Model* m) {
         m->mutable_normalizer_spec()->set_precompiled_charsmap(std::string("\4\0\0\0abcdx", 9));
       }},
  };
  for (const auto& [says, damage] : cases) {
    spm::Model model = SmallModel();
    damage(&model);
    CheckRejected(LoadStatus({{"spiece.model", model.SerializeAsString()}}), "spiece.model", says);
  }
}

// Encodes texts that make the tokenizer read its tries (prefix trees of pieces and normalization
// rules). If the loader did not detect that a trie is damaged, the test crashes or a sanitizer
// reports an error.
void Exercise(const Tokenizer& tokenizer) {
  for (const std::string& text : {std::string("abc \u00E9\uFF21 \U0001F600</s>\xFF\x80"),
                                  std::string(300, 'a'), std::string("\0", 1)}) {
    const auto ids = tokenizer.Encode(text, true).value();
    CHECK(tokenizer.Decode(ids, false).size() < 100000);
    CHECK(tokenizer.EncodeWithSpans(text, true).value().size() == ids.size());
  }
}

TEST_CASE("A normalizer that makes a text more than 16 MiB longer is an error", "[tokenizer]") {
  ScratchDirectory directory;
  const auto load = [&](const Json& normalizer) {
    Json json = SmallBpe();
    json["normalizer"] = normalizer;
    WriteText(directory / "tokenizer.json", json.dump());
    auto tokenizer = Tokenizer::Load(directory / ".");
    REQUIRE(tokenizer.ok());
    return *std::move(tokenizer);
  };
  const auto check_error = [](const Tokenizer& tokenizer, const std::string& text) {
    for (const absl::Status& status :
         {tokenizer.Encode(text, false).status(), tokenizer.EncodeWithSpans(text, true).status()}) {
      INFO(status);
      CHECK(status.code() == absl::StatusCode::kInvalidArgument);
      CHECK_THAT(
          std::string(status.message()),
          ContainsSubstring("normalizer") && ContainsSubstring("by at most 16777216 bytes, got"));
    }
  };
  const Json times_4001 = {{"type", "Replace"},
                           {"pattern", {{"String", "b"}}},
                           {"content", std::string("a").append(4000, 'b')}};
  const auto longer = load(times_4001);
  CHECK(longer->Encode("abba", false).value().size() == 8002);
  // The normalizer replaces each letter b by 4,001 bytes, that is, it adds 4,000 bytes per letter.
  // It may add at most 16 MiB: 4,194 letters grow by 16,776,000 bytes, which is within this limit,
  // and 4,195 letters exceed it.
  CHECK(longer->Encode(std::string(4194, 'b'), false).value().size() == 4194 * 4000);
  check_error(*longer, std::string(4195, 'b'));
  check_error(*longer, std::string(1 << 20, 'b'));
  // Added tokens divide a text into parts, which are normalized separately. The limit applies to
  // the sum of the bytes added to all parts; encoding stops at the part that makes the sum exceed
  // it.
  std::string parts;
  while (parts.size() < 50000) parts += "b</s>";
  check_error(*longer, parts);
  CHECK(longer->Encode("ab", false).ok());  // other texts still work

  // The limit also applies to a normalizer of type Sequence. This one has two steps, and each makes
  // the text 30 times as long.
  const Json times_30 = {
      {"type", "Replace"}, {"pattern", {{"Regex", "b"}}}, {"content", std::string(30, 'b')}};
  const auto sequence =
      load({{"type", "Sequence"}, {"normalizers", Json::array({times_30, times_30})}});
  CHECK(sequence->Encode("b", false).value().size() == 900);
  check_error(*sequence, std::string(20000, 'b'));
}

TEST_CASE("Added tokens that a normalizer makes too long are refused", "[tokenizer]") {
  Json json = SmallBpe();
  json["normalizer"] = {
      {"type", "Replace"}, {"pattern", {{"String", "b"}}}, {"content", std::string(4000, 'b')}};
  for (int i = 0; i < 3; ++i) {
    json["added_tokens"].push_back({{"id", 5 + i},
                                    {"content", std::string(static_cast<size_t>(2000 + i), 'b')},
                                    {"normalized", true}});
  }
  CheckRejected(LoadStatus({{"tokenizer.json", json.dump()}}), "tokenizer.json: added tokens",
                "by at most 16777216 bytes");
}

TEST_CASE("Steps with too much text growth are refused at load", "[tokenizer]") {
  const Json twice =
      Json::parse(R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})");
  const auto load = [&](const char* part, const char* list, int steps) {
    Json json = SmallBpe();
    json[part] = {{"type", "Sequence"},
                  {list, std::vector<Json>(static_cast<size_t>(steps), twice)}};
    return LoadStatus({{"tokenizer.json", json.dump()}});
  };
  CHECK(load("normalizer", "normalizers", 11).ok());
  CHECK(load("decoder", "decoders", 4).ok());
  CheckRejected(load("normalizer", "normalizers", 40), "tokenizer.json", "times, got");
  CheckRejected(load("decoder", "decoders", 5), "tokenizer.json", "at most 16 times, got 32");
  Json regex = SmallBpe();
  regex["normalizer"] = {
      {"type", "Replace"}, {"pattern", {{"Regex", "a*"}}}, {"content", std::string(4096, 'b')}};
  CheckRejected(LoadStatus({{"tokenizer.json", regex.dump()}}), "tokenizer.json", "got 4097");

  spm::Model model = SmallModel();
  std::string blob("\4\0\0\0\0\0\0\0", 8);
  blob += std::string(129, 'x') + std::string("\0y\0", 3);
  model.mutable_normalizer_spec()->set_precompiled_charsmap(blob);
  CheckRejected(LoadStatus({{"spiece.model", model.SerializeAsString()}}), "spiece.model",
                "at most 128 bytes, got 129");
}

TEST_CASE("Searches of a random double array stay in bounds", "[tokenizer]") {
  uint32_t seed = 1;
  const auto next = [&] { return seed = seed * 1664525u + 1013904223u; };
  int loaded = 0;
  for (int round = 0; round < 300; ++round) {
    // The trie is a double array of random units (its nodes). Links between units form cycles or
    // lead beyond the end of the array, and some units refer to replacement strings beyond the end
    // of the strings.
    std::string blob;
    const uint32_t units = 1 + next() % 300;
    const auto put = [&](uint32_t value) { blob.append(reinterpret_cast<const char*>(&value), 4); };
    put(units * 4);
    for (uint32_t i = 0; i < units; ++i) {
      const uint32_t offset = round % 3 == 0 ? next() : next() % 512;
      put((offset << 10) | (next() >> 8 & 0x300) | ((i ^ (round % 2 != 0 ? offset : 0)) & 0xFF));
    }
    blob.append("x\0yy\0", 5);
    spm::Model model = SmallModel();
    model.mutable_normalizer_spec()->set_precompiled_charsmap(blob);
    ScratchDirectory directory;
    WriteText(directory / "spiece.model", model.SerializeAsString());
    const auto tokenizer = Tokenizer::Load(directory / "");
    if (!tokenizer.ok()) {
      CheckRejected(tokenizer.status(), "spiece.model", "a cycle in the trie");
      continue;
    }
    ++loaded;
    Exercise(**tokenizer);
  }
  CHECK(loaded > 100);
}

// Returns a double array in which each unit has one child, labelled 'a'. The child of the last unit
// is unit `next`; if `next` is 0, the last unit has no child.
std::string ChainOfRules(uint32_t units, uint32_t next) {
  // The index of a unit's child is the unit's index ^ its offset ^ label.
  const auto unit = [](uint32_t at, uint32_t child, uint32_t label) {
    return (at ^ child ^ 'a') << 10 | label;
  };
  std::string blob;
  const auto put = [&](uint32_t value) { blob.append(reinterpret_cast<const char*>(&value), 4); };
  put(units * 4);
  for (uint32_t i = 0; i < units; ++i) {
    const uint32_t child = i + 1 < units ? i + 1 : next;
    put(unit(i, child == 0 ? units + 1000 : child, i == 0 ? 0xFF : 'a'));
  }
  return blob.append("x\0", 2);
}

TEST_CASE("A double array with too long rules or a cycle is an error", "[tokenizer]") {
  const auto status = [](const std::string& blob) {
    spm::Model model = SmallModel();
    model.mutable_normalizer_spec()->set_precompiled_charsmap(blob);
    return LoadStatus({{"spiece.model", model.SerializeAsString()}});
  };
  CHECK(status(ChainOfRules(129, 0)).ok());
  CheckRejected(status(ChainOfRules(130, 0)), "spiece.model: precompiled_charsmap",
                "expected rules for at most 128 bytes, got longer ones");
  CheckRejected(status(ChainOfRules(2, 1)), "spiece.model", "a cycle in the trie");
  CheckRejected(status(ChainOfRules(40, 7)), "spiece.model", "a cycle in the trie");
}

TEST_CASE("A truncated spiece.model, or one with flipped bits, never crashes", "[tokenizer]") {
  std::string good = DataFile("sp-bpe-identity-bytes/spiece.model");
  REQUIRE(good.size() > 1000);
  for (size_t size = 0; size < good.size(); size += 997) {
    const absl::Status status = LoadStatus({{"spiece.model", good.substr(0, size)}});
    // A file that is cut between two fields parses as a model with fewer fields. That model is
    // either incomplete, which must give an error, or happens to be valid.
    if (!status.ok()) CHECK_THAT(std::string(status.message()), ContainsSubstring("spiece.model"));
  }
  ScratchDirectory directory;
  uint32_t seed = 9;
  int loaded = 0;
  for (int round = 0; round < 200; ++round) {
    std::string bad = good;
    for (int flips = 0; flips < 3; ++flips) {
      seed = seed * 1664525u + 1013904223u;
      bad[seed % bad.size()] ^= static_cast<char>(1 << (seed >> 28 & 7));
    }
    WriteText(directory / "spiece.model", bad);
    const auto tokenizer = Tokenizer::Load(directory / "");
    if (!tokenizer.ok()) continue;
    ++loaded;
    Exercise(**tokenizer);
  }
  CHECK(loaded > 0);
}

TEST_CASE("Errors in vocab.json and merges.txt name the file and place", "[tokenizer]") {
  const std::string vocab = R"({"a": 0, "b": 1, "ab": 2})";
  REQUIRE(LoadStatus({{"vocab.json", vocab}, {"merges.txt", "#version: 0.2\na b\n"}}).ok());
  CheckRejected(LoadStatus({{"vocab.json", vocab}, {"merges.txt", "a b c\n"}}), "merges.txt",
                "line 1: expected two pieces");
  CheckRejected(LoadStatus({{"vocab.json", vocab}, {"merges.txt", "#version: 0.2\nab\n"}}),
                "merges.txt", "line 2");
  CheckRejected(LoadStatus({{"vocab.json", vocab}, {"merges.txt", "a z\n"}}), "merges.txt",
                "\"z\" in the vocabulary");
  CheckRejected(LoadStatus({{"vocab.json", R"({"a": "0"})"}, {"merges.txt", ""}}), "vocab.json",
                "expected an id, got \"0\"");
  CheckRejected(LoadStatus({{"vocab.json", "[1"}, {"merges.txt", ""}}), "vocab.json", "not JSON");
  CHECK(LoadStatus({{"vocab.json", vocab}}).code() == absl::StatusCode::kNotFound);
}

TEST_CASE("Errors in a tokenizer's small configuration files name the field", "[tokenizer]") {
  const std::string good = SmallBpe().dump();
  const struct {
    const char* file;
    const char* content;
    const char* says;
  } cases[] = {
      {"tokenizer_config.json", "[]", "expected an object"},
      {"tokenizer_config.json", "{", "not JSON"},
      {"tokenizer_config.json", R"({"eos_token": 3})",
       "eos_token: token: expected a string or an object, got 3"},
      {"tokenizer_config.json", R"({"eos_token": {"text": "x"}})", "content: expected a string"},
      {"tokenizer_config.json", R"({"extra_ids": -1})",
       "extra_ids: expected a number in [0, 10000], got -1"},
      {"tokenizer_config.json", R"({"extra_ids": 1e3})", "extra_ids: expected an integer"},
      {"tokenizer_config.json", R"({"clean_up_tokenization_spaces": "yes"})",
       "expected true or false, got \"yes\""},
      {"tokenizer_config.json", R"({"added_tokens_decoder": {"x": "a"}})",
       "expected an id, got \"x\""},
      {"tokenizer_config.json", R"({"added_tokens_decoder": {"-1": "a"}})", "got -1"},
      {"tokenizer_config.json", R"({"additional_special_tokens": "a"})", "expected a list"},
      {"tokenizer_config.json", R"({"add_prefix_space": "yes"})",
       "add_prefix_space: expected true or false, got \"yes\""},
      {"tokenizer_config.json", R"({"tokenizer_class": 5})",
       "tokenizer_class: expected a string, got 5"},
      {"tokenizer_config.json", R"({"extra_special_tokens": {"image": 3}})",
       "extra_special_tokens: token: expected a string or an object, got 3"},
      {"config.json", "[]", "expected an object"},
      {"special_tokens_map.json", R"({"pad_token": []})", "pad_token"},
      {"added_tokens.json", R"({"x": "y"})", "x: expected an integer, got \"y\""},
      {"added_tokens.json", R"({"x": 4194304})", "expected an id in"},
  };
  for (const auto& test : cases) {
    CAPTURE(test.content);
    CheckRejected(LoadStatus({{"tokenizer.json", good}, {test.file, test.content}}), test.file,
                  test.says);
  }
  CheckRejected(LoadStatus({{"tokenizer.json", good}, {"added_tokens.json", R"({"new": 1})"}}),
                "added token 1", "\"a\" for this id");
}

}  // namespace
}  // namespace quintet
