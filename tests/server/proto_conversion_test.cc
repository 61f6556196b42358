#include "server/proto_conversion.h"

#include <set>
#include <string>
#include <vector>

#include "google/protobuf/text_format.h"
#include "tests/catch.h"
#include "tests/server/every_decoding_option.h"

namespace quintet {
namespace {

using Ids = std::vector<uint32_t>;

DecodingRequest Convert(const std::string& text) {
  v1::DecodingOptions options;
  REQUIRE(google::protobuf::TextFormat::ParseFromString(text, &options));
  const auto request = DecodingFromProto(options, nullptr, {.vocab = 100});
  REQUIRE(request.ok());
  return *request;
}

TEST_CASE("every decoding option reaches the field of its name", "[proto_conversion]") {
  const DecodingRequest r = Convert(kEveryDecodingOption);
  CHECK(r.max_new_tokens == 1);
  CHECK(r.min_new_tokens == 2);
  CHECK(r.num_beams == 3);
  CHECK(r.num_return_sequences == 4);
  CHECK(r.length_penalty == double{0.6f});
  CHECK(r.early_stopping == EarlyStopping::kNever);
  CHECK(r.patience == 7.5);
  CHECK(r.do_sample == true);
  CHECK(r.seed == 18446744073709551615u);
  CHECK(r.temperature == 10.5);
  CHECK(r.top_k == 11);
  CHECK(r.top_p == 12.5);
  CHECK(r.typical_p == 13.5);
  CHECK(r.min_p == 14.5);
  CHECK(r.repetition_penalty == 15.5);
  CHECK(r.no_repeat_ngram_size == 16);
  CHECK(r.suppress_tokens == Ids{17, 4294967295});
  CHECK(r.begin_suppress_tokens == Ids{18});
  CHECK(r.bad_words_ids == std::vector<Ids>{{19, 20}, {21}, {}});
  CHECK(r.forced_bos_token_id == 22);
  CHECK(r.forced_eos_token_ids == Ids{23, 24});
  CHECK(r.eos_token_ids == Ids{25});
  CHECK(r.decoder_start_token_id == 26);
  CHECK(r.pad_token_id == 4294967295);
  CHECK(r.decoder_prefix == std::vector<int32_t>{28});
  CHECK(r.stop == std::vector<std::string>{"a", "b"});
  CHECK(r.include_stop == true);
  CHECK(r.ignore_eos == true);
  CHECK(r.logprobs == true);
  CHECK(r.top_logprobs == 30);
  CHECK(r.return_scores == true);
  CHECK(r.echo == true);
}

TEST_CASE("a decoding option set to its type's zero is set", "[proto_conversion]") {
  const DecodingRequest zero = Convert("top_k: 0 temperature: 0 do_sample: false seed: 0");
  CHECK(zero.top_k == 0);
  CHECK(zero.temperature == 0.0);
  CHECK(zero.do_sample == false);
  CHECK(zero.seed == 0);
  const DecodingRequest unset = Convert("");
  CHECK(!unset.top_k.has_value());
  CHECK(!unset.temperature.has_value());
  CHECK(!unset.do_sample.has_value());
  CHECK(!unset.seed.has_value());
  CHECK(!unset.early_stopping.has_value());
  CHECK(!Convert("early_stopping: EARLY_STOPPING_UNSPECIFIED").early_stopping.has_value());
}

TEST_CASE("the decoding options of the proto and of a request have the same names",
          "[proto_conversion]") {
  // VisitRequestFields does not visit the four fields below, because DecodingFromProto and the
  // handlers read them directly.
  std::set<std::string> names{"decoder_prefix", "return_text", "return_token_ids",
                              "skip_special_tokens"};
  DecodingRequest request;
  VisitRequestFields(&request, [&names](const char* name, auto*) { names.insert(name); });
  std::set<std::string> in_proto;
  const auto* descriptor = v1::DecodingOptions::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    in_proto.emplace(descriptor->field(i)->name());
  }
  CHECK(names == in_proto);
}

}  // namespace
}  // namespace quintet
