#include "server/kserve/parameters.h"

#include <string>

#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "quintet/v1/inference.pb.h"
#include "tests/catch.h"
#include "tests/server/every_decoding_option.h"

namespace quintet {
namespace {

using nlohmann::json;

v1::DecodingOptions Set(const json& options) {
  v1::DecodingOptions decoding;
  ParameterReader reader({&decoding}, {});
  for (const auto& [name, value] : options.items()) {
    const absl::Status status = reader.Set(name, value);
    INFO(name << ": " << status.message());
    REQUIRE(status.ok());
  }
  return decoding;
}

v1::DecodingOptions Expected(const std::string& text) {
  v1::DecodingOptions decoding;
  REQUIRE(google::protobuf::TextFormat::ParseFromString(text, &decoding));
  return decoding;
}

bool Equal(const v1::DecodingOptions& a, const v1::DecodingOptions& b) {
  return google::protobuf::util::MessageDifferencer::Equals(a, b);
}

const json& EveryField() {
  static const auto* const fields = new json(json::parse(R"({
    "max_new_tokens": 1, "min_new_tokens": 2, "num_beams": 3, "num_return_sequences": 4,
    "length_penalty": 0.6, "early_stopping": "never", "patience": 7.5, "do_sample": true,
    "seed": 18446744073709551615, "temperature": 10.5, "top_k": 11, "top_p": 12.5,
    "typical_p": 13.5, "min_p": 14.5, "repetition_penalty": 15.5, "no_repeat_ngram_size": 16,
    "suppress_tokens": [17, 4294967295], "begin_suppress_tokens": [18],
    "bad_words_ids": [[19, 20], [21], []], "forced_bos_token_id": 22,
    "forced_eos_token_ids": [23, 24], "eos_token_ids": [25], "decoder_start_token_id": 26,
    "pad_token_id": 4294967295, "decoder_prefix": [28], "stop": ["a", "b"], "include_stop": true,
    "ignore_eos": true, "logprobs": true, "top_logprobs": 30, "return_scores": true, "echo": true,
    "return_text": false, "return_token_ids": false, "skip_special_tokens": false})"));
  return *fields;
}

TEST_CASE("every decoding option can be set by its name", "[kserve]") {
  const v1::DecodingOptions expected = Expected(kEveryDecodingOption);
  // A new field must be added to both lists.
  for (int i = 0; i < expected.GetDescriptor()->field_count(); ++i) {
    CHECK(EveryField().contains(std::string(expected.GetDescriptor()->field(i)->name())));
  }
  CHECK(Equal(Set(EveryField()), expected));
}

TEST_CASE("a string is the JSON form of an option that is not a string", "[kserve]") {
  json strings;
  for (const auto& [name, value] : EveryField().items()) {
    strings[name] = value.is_string() ? value : json(value.dump());
  }
  CHECK(Equal(Set(strings), Expected(kEveryDecodingOption)));
  CHECK(Equal(Set({{"stop", "a [b]"}}), Expected(R"(stop: "a [b]")")));
  CHECK(Equal(Set({{"decoder_prefix", "F"}}), Expected(R"(decoder_prefix { text: "F" })")));
  CHECK(Equal(Set({{"early_stopping", true}}), Expected("early_stopping: EARLY_STOPPING_FIRST")));
  CHECK(Equal(Set({{"early_stopping", "EARLY_STOPPING_NEVER"}}),
              Expected("early_stopping: EARLY_STOPPING_NEVER")));
}

TEST_CASE("vLLM's names and its rules for sampling are followed", "[kserve]") {
  const auto sampling = [](const std::string& text) {
    v1::DecodingOptions decoding;
    const absl::Status status = ParameterReader({&decoding}, {}).SetSampling(text);
    INFO(status.message());
    REQUIRE(status.ok());
    return decoding;
  };
  CHECK(Equal(sampling(R"({"n": 2, "max_tokens": 5, "min_tokens": 1, "top_p": 0.5})"),
              Expected("num_return_sequences: 2 max_new_tokens: 5 min_new_tokens: 1 top_p: 0.5 "
                       "do_sample: true")));
  CHECK(Equal(sampling(R"({"temperature": 0, "seed": 3})"), Expected("temperature: 0")));
  CHECK(Equal(sampling(R"({"top_k": 3, "do_sample": false})"),
              Expected("top_k: 3 do_sample: false")));
  CHECK(Equal(sampling("{}"), Expected("")));
}

TEST_CASE("priorities are words or the levels of Triton", "[kserve]") {
  CHECK(*ReadPriority(0) == v1::PRIORITY_UNSPECIFIED);
  CHECK(*ReadPriority(1) == v1::PRIORITY_HIGH);
  CHECK(*ReadPriority(uint64_t{2}) == v1::PRIORITY_NORMAL);
  CHECK(*ReadPriority("low") == v1::PRIORITY_LOW);
  CHECK(*ReadPriority("PRIORITY_HIGH") == v1::PRIORITY_HIGH);
  for (const json& bad : {json(4), json(-1), json("urgent"), json(1.0), json(true), json()}) {
    CHECK(absl::IsInvalidArgument(ReadPriority(bad).status()));
  }
}

TEST_CASE("values of a wrong type are refused with the name of the option", "[kserve]") {
  const json values = {nullptr,       true,     -1,         1.5,         "x",   uint64_t{1} << 40,
                       json::array(), {1, "x"}, {{"a", 1}}, {{1}, {-1}}, "[[]]"};
  for (const auto& [name, valid] : EveryField().items()) {
    for (const json& value : values) {
      v1::DecodingOptions decoding;
      const absl::Status status = ParameterReader({&decoding}, {}).Set(name, value);
      INFO(name << " " << value << ": " << status.message());
      if (!status.ok()) {
        CHECK(absl::IsInvalidArgument(status));
        CHECK(status.message().substr(0, 13 + name.size()) == "parameters." + name + ": ");
      } else if (value.type() != valid.type()) {
        // Some options also accept values of another type than `valid`, but none accepts an object
        // or null.
        CHECK((value.is_number() || value.is_string() || value.is_array() || value.is_boolean()));
      }
    }
  }
}

}  // namespace
}  // namespace quintet
