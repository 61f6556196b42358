#include <string>

#include "absl/strings/str_cat.h"
#include "models/config/generation_config.h"
#include "tests/catch.h"
#include "tests/models/checkpoint/checkpoint.h"

namespace quintet {
namespace {

using Catch::Matchers::ContainsSubstring;

absl::StatusOr<GenerationDefaults> Read(const std::string& text) {
  TemporaryDirectory directory;
  WriteBytes(directory / "generation_config.json", text);
  return ReadGenerationDefaults(directory.path());
}

TEST_CASE("A missing file and an empty object give no defaults", "[generation_config]") {
  TemporaryDirectory directory;
  const auto missing = ReadGenerationDefaults(directory.path());
  REQUIRE(missing.ok());
  CHECK(!missing->max_length.has_value());
  CHECK(!missing->do_sample.has_value());
  CHECK(missing->eos_token_ids.empty());
  CHECK(Read("{}").ok());
}

// The fields of GenerationConfig in transformers 5.23 that change the generated tokens and that
// Quintet does not support, each with a value that has an effect.
const std::pair<const char*, const char*> kNotFollowed[] = {
    {"constraints", "[1]"},
    {"diversity_penalty", "0.5"},
    {"dola_layers", "\"high\""},
    {"encoder_no_repeat_ngram_size", "2"},
    {"encoder_repetition_penalty", "1.5"},
    {"epsilon_cutoff", "0.001"},
    {"eta_cutoff", "0.001"},
    {"exponential_decay_length_penalty", "[5,1.1]"},
    {"force_words_ids", "[[3]]"},
    {"guidance_scale", "1.5"},
    {"is_assistant", "true"},
    {"max_time", "2.5"},
    {"num_beam_groups", "2"},
    {"penalty_alpha", "0.6"},
    {"remove_invalid_values", "true"},
    {"renormalize_logits", "true"},
    {"sequence_bias", "[[[3],5.0]]"},
    {"stop_strings", "[\".\"]"},
    {"token_healing", "true"},
    {"top_h", "0.4"},
    {"watermarking_config", "{\"bias\":2.0}"},
};

TEST_CASE("Each unsupported field is named with its value and rejected for generation",
          "[generation_config]") {
  for (const auto& [name, value] : kNotFollowed) {
    INFO(name);
    const auto d = Read(absl::StrCat("{\"", name, "\": ", value, "}"));
    REQUIRE(d.ok());
    const std::string what = absl::StrCat("generation_config.json: ", name, " is ", value);
    CHECK(d->unsupported_fields == std::vector<std::string>{what});
    const absl::Status refused = CheckGenerationSupported(*d);
    CHECK(absl::IsUnimplemented(refused));
    CHECK_THAT(std::string(refused.message()), ContainsSubstring(what));
    CHECK_THAT(std::string(refused.message()), ContainsSubstring("--ignore-generation-fields"));
    const auto absent = Read(absl::StrCat("{\"", name, "\": null}"));
    REQUIRE(absent.ok());
    CHECK(absent->unsupported_fields.empty());
  }
  // The texts in unsupported_fields show the values of the fields: long values are shortened and
  // control characters, which a terminal would interpret, are escaped.
  const auto longest =
      Read(absl::StrCat(R"({"stop_strings": ["\u001b\u00e9)", std::string(1000, 'x'), R"("]})"));
  REQUIRE(longest.ok());
  REQUIRE(longest->unsupported_fields.size() == 1);
  CHECK(longest->unsupported_fields[0].size() < 150);
  CHECK_THAT(longest->unsupported_fields[0],
             ContainsSubstring(R"(stop_strings is ["\u001b\u00e9xxx)"));
  const auto two = Read(R"({"max_time": 2, "guidance_scale": 1.5})");
  REQUIRE(two.ok());
  CHECK_THAT(std::string(CheckGenerationSupported(*two).message()),
             ContainsSubstring("guidance_scale is 1.5"));
  CHECK_THAT(std::string(CheckGenerationSupported(*two).message()),
             ContainsSubstring("max_time is 2"));
}

TEST_CASE("Values without effect and fields that change only speed are ignored",
          "[generation_config]") {
  const auto neutral = Read(R"({"sequence_bias": null, "num_beam_groups": 1,
    "diversity_penalty": 0.0, "encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0,
    "renormalize_logits": false, "remove_invalid_values": false, "guidance_scale": 1,
    "epsilon_cutoff": 0.0, "eta_cutoff": 0, "penalty_alpha": 0.0, "token_healing": false,
    "is_assistant": false, "max_time": null, "use_cache": true, "cache_implementation": "static",
    "prompt_lookup_num_tokens": 10, "num_assistant_tokens": 20, "low_memory": true,
    "output_scores": true, "return_dict_in_generate": true})");
  REQUIRE(neutral.ok());
  CHECK(neutral->unsupported_fields.empty());
  CHECK(CheckGenerationSupported(*neutral).ok());
}

TEST_CASE("Without generation_config.json the fields of config.json apply, except the special ids",
          "[generation_config]") {
  TemporaryDirectory directory;
  WriteBytes(directory / "config.json",
             R"({"model_type": "mt5", "num_beams": 4, "length_penalty": 0.6, "max_length": 84,
    "no_repeat_ngram_size": 2, "forced_bos_token_id": null, "pad_token_id": -100, "eos_token_id": 1,
    "decoder_start_token_id": 3, "diversity_penalty": 0.5})");
  const auto old = ReadGenerationDefaults(directory.path());
  REQUIRE(old.ok());
  CHECK(old->num_beams == 4);
  CHECK(old->length_penalty == 0.6);
  CHECK(old->max_length == 84);
  CHECK(old->no_repeat_ngram_size == 2);
  CHECK(!old->forced_bos_token_id.has_value());
  CHECK(!old->pad_token_id.has_value());
  CHECK(!old->decoder_start_token_id.has_value());
  CHECK(old->eos_token_ids.empty());
  CHECK(old->unsupported_fields ==
        std::vector<std::string>{"config.json: diversity_penalty is 0.5"});
  WriteBytes(directory / "generation_config.json", R"({"max_length": 30})");
  const auto both = ReadGenerationDefaults(directory.path());
  REQUIRE(both.ok());
  CHECK(both->max_length == 30);
  CHECK(!both->num_beams.has_value());
}

TEST_CASE("Errors about bad_words_ids of config.json name that file", "[generation_config]") {
  TemporaryDirectory directory;
  WriteBytes(directory / "config.json", R"({"bad_words_ids": [[-1]]})");
  const auto status = ReadGenerationDefaults(directory.path()).status();
  CHECK_THAT(std::string(status.message()), ContainsSubstring("config.json: bad_words_ids"));
  CHECK_THAT(std::string(status.message()), !ContainsSubstring("generation_config.json"));
}

TEST_CASE("Every field of generation_config.json is read", "[generation_config]") {
  const auto d = Read(R"({
    "max_new_tokens": 64, "max_length": 200, "min_new_tokens": 2, "min_length": 3, "num_beams": 4,
    "num_return_sequences": 2, "length_penalty": 0.6, "temperature": 0.7, "top_p": 0.9,
    "typical_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.2, "top_k": 40,
    "no_repeat_ngram_size": 3, "do_sample": true, "early_stopping": "never",
    "forced_bos_token_id": 7, "decoder_start_token_id": 8, "pad_token_id": 0,
    "eos_token_id": [1, 2], "forced_eos_token_id": 5, "suppress_tokens": [9, 10],
    "begin_suppress_tokens": [11], "bad_words_ids": [[1], [2, 3]],
    "transformers_version": "5.17.0", "_from_model_config": true})");
  REQUIRE(d.ok());
  CHECK(d->max_new_tokens == 64);
  CHECK(d->max_length == 200);
  CHECK(d->min_new_tokens == 2);
  CHECK(d->min_length == 3);
  CHECK(d->num_beams == 4);
  CHECK(d->num_return_sequences == 2);
  CHECK(d->length_penalty == 0.6);
  CHECK(d->temperature == 0.7);
  CHECK(d->top_p == 0.9);
  CHECK(d->typical_p == 0.95);
  CHECK(d->min_p == 0.05);
  CHECK(d->repetition_penalty == 1.2);
  CHECK(d->top_k == 40);
  CHECK(d->no_repeat_ngram_size == 3);
  CHECK(d->do_sample == true);
  CHECK(d->early_stopping == EarlyStopping::kNever);
  CHECK(d->forced_bos_token_id == 7);
  CHECK(d->decoder_start_token_id == 8);
  CHECK(d->pad_token_id == 0);
  CHECK(d->eos_token_ids == std::vector<uint32_t>{1, 2});
  CHECK(d->forced_eos_token_ids == std::vector<uint32_t>{5});
  CHECK(d->suppress_tokens == std::vector<uint32_t>{9, 10});
  CHECK(d->begin_suppress_tokens == std::vector<uint32_t>{11});
  CHECK(d->bad_words_ids == std::vector<std::vector<uint32_t>>{{1}, {2, 3}});
}

TEST_CASE("Hugging Face's old default max_length of 20 is ignored", "[generation_config]") {
  CHECK(!Read(R"({"max_length": 20})")->max_length.has_value());
  CHECK(Read(R"({"max_length": 21})")->max_length == 21);
  CHECK(Read(R"({"early_stopping": true})")->early_stopping == EarlyStopping::kFirst);
  CHECK(Read(R"({"early_stopping": false})")->early_stopping == EarlyStopping::kHeuristic);
  CHECK(!Read(R"({"early_stopping": null, "num_beams": null})")->num_beams.has_value());
}

TEST_CASE("Invalid generation defaults are rejected", "[generation_config]") {
  const std::pair<const char*, const char*> cases[] = {
      {"", "generation_config.json"},
      {"[]", "expected an object"},
      {R"({"max_length": "20"})", "max_length"},
      {R"({"max_length": 0})", "max_length"},
      {R"({"max_new_tokens": -1})", "max_new_tokens"},
      {R"({"num_beams": 0})", "num_beams"},
      {R"({"num_beams": 1e10})", "num_beams"},
      {R"({"num_beams": 99999999999999999999})", "num_beams"},
      {R"({"temperature": NaN})", "generation_config.json"},
      {R"({"temperature": -1})", "temperature"},
      {R"({"top_p": 1.5})", "top_p"},
      {R"({"top_k": -1})", "top_k"},
      {R"({"do_sample": 1})", "do_sample"},
      {R"({"early_stopping": "always"})", "early_stopping"},
      {R"({"early_stopping": 1})", "early_stopping"},
      {R"({"eos_token_id": -1})", "eos_token_id"},
      {R"({"eos_token_id": 2147483648})", "eos_token_id"},
      {R"({"eos_token_id": [1, "2"]})", "eos_token_id"},
      {R"({"pad_token_id": [1]})", "pad_token_id"},
      {R"({"bad_words_ids": [1]})", "bad_words_ids"},
      {R"({"bad_words_ids": [[]]})", "bad_words_ids"},
      {R"({"bad_words_ids": {"a": 1}})", "bad_words_ids"},
      {R"({"bad_words_ids": [[-1]]})", "bad_words_ids"},
      {R"({"bad_words_ids": [null]})", "bad_words_ids"},
  };
  for (const auto& [text, message] : cases) {
    INFO(text);
    const auto d = Read(text);
    CHECK(absl::IsInvalidArgument(d.status()));
    CHECK_THAT(std::string(d.status().message()), ContainsSubstring(message));
  }
}

}  // namespace
}  // namespace quintet
