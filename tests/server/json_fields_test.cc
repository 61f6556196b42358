#include "server/json_fields.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/reflection.h"
#include "google/protobuf/util/message_differencer.h"
#include "models/checkpoint/json.h"
#include "tests/catch.h"

namespace quintet {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::util::MessageDifferencer;
using nlohmann::json;

json Body(const std::string& text) {
  absl::StatusOr<json> body = ParseJson(text, "body");
  REQUIRE(body.ok());
  return *std::move(body);
}

// Reads the decoding options in the JSON object `text`; returns the error message, "" if none.
std::string DecodingError(const std::string& text) {
  const json body = Body(text);
  JsonFields fields(body);
  v1::DecodingOptions options;
  fields.ReadDecoding(&options);
  return std::string(fields.status().message());
}

TEST_CASE("JSON sets every field of DecodingOptions by its name", "[json]") {
  const auto* const type = v1::DecodingOptions::descriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    const std::string name(field->name());
    v1::DecodingOptions expected;
    const auto* const reflection = expected.GetReflection();
    json value;
    if (name == "bad_words_ids") {
      expected.add_bad_words_ids()->add_ids(7);
      value = json::array({json::array({7u})});
    } else if (name == "decoder_prefix") {
      expected.mutable_decoder_prefix()->set_text("a");
      value = "a";
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      reflection->AddString(&expected, field, "x");
      value = json::array({"x"});
    } else if (field->is_repeated()) {
      reflection->AddUInt32(&expected, field, 7);
      value = json::array({7u});
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
      reflection->SetUInt32(&expected, field, 7);
      value = 7u;
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
      reflection->SetUInt64(&expected, field, uint64_t{1} << 63);
      value = uint64_t{1} << 63;
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_FLOAT) {
      reflection->SetFloat(&expected, field, 0.1f);
      value = 0.1;
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
      reflection->SetBool(&expected, field, true);
      value = true;
    } else {
      expected.set_early_stopping(v1::EARLY_STOPPING_NEVER);
      value = "never";
    }
    INFO(name);
    const json body = {{name, value}};
    JsonFields fields(body);
    v1::DecodingOptions found;
    fields.ReadDecoding(&found);
    CHECK(fields.status().ok());
    CHECK(MessageDifferencer::Equals(found, expected));
    // A field with a value of the wrong type gives an error that begins with the field's name.
    const json wrong = {{name, json::object()}};
    JsonFields refused(wrong);
    refused.ReadDecoding(&found);
    CHECK(absl::StartsWith(refused.status().message(), absl::StrCat(name, ": expected ")));
    // null is an absent option.
    const json null = {{name, nullptr}};
    JsonFields absent(null);
    v1::DecodingOptions unset;
    absent.ReadDecoding(&unset);
    CHECK(absent.status().ok());
    CHECK(unset.ByteSizeLong() == 0);
  }
}

TEST_CASE("Numbers of JSON that no field can hold are errors or infinities", "[json]") {
  CHECK(DecodingError(R"({"max_new_tokens":4294967296})") ==
        "max_new_tokens: expected a whole number from 0 to 4294967295, got 4294967296");
  for (const char* value : {"-1", "1.0", "1e3", "true", "\"1\"", "[1]"}) {
    INFO(value);
    CHECK(absl::StartsWith(DecodingError(absl::StrCat(R"({"top_k":)", value, "}")), "top_k: "));
    CHECK(absl::StartsWith(DecodingError(absl::StrCat(R"({"seed":)", value, "}")), "seed: "));
  }
  const json body = Body(R"({"temperature":1e300,"top_p":-1e300})");
  JsonFields fields(body);
  v1::DecodingOptions options;
  fields.ReadDecoding(&options);
  CHECK(std::isinf(options.temperature()));
  CHECK(std::isinf(options.top_p()));
  CHECK(DecodingError(R"({"suppress_tokens":[1,-1]})") ==
        "suppress_tokens[1]: expected a whole number from 0 to 4294967295, got -1");
  CHECK(DecodingError(R"({"early_stopping":"soon"})") ==
        "early_stopping: expected one of heuristic, first, never, got string");
}

TEST_CASE("Inputs are texts, token ids or lists of them", "[json]") {
  const struct {
    const char* text;
    size_t inputs;  // 0: an error
    bool list;
  } kCases[] = {{R"("a")", 1, false},       {R"(["a","b"])", 2, true}, {"[1,2]", 1, false},
                {"[[1],[2,3]]", 2, true},   {R"([[1],"b"])", 2, true}, {"[]", 0, true},
                {"{}", 0, false},           {"5", 0, false},           {"[1,\"a\"]", 0, false},
                {R"(["a",5])", 0, true},    {"[[]]", 1, true},         {"[[[1]]]", 0, true},
                {"[4294967296]", 0, false}, {"[-1]", 0, false},        {"true", 0, false}};
  for (const auto& one : kCases) {
    INFO(one.text);
    const json body = Body(absl::StrCat(R"({"input":)", one.text, "}"));
    JsonFields fields(body);
    std::vector<v1::Input> inputs;
    bool list = false;
    fields.ReadInputs("input", &inputs, &list);
    CHECK(fields.status().ok() == (one.inputs > 0));
    if (!fields.status().ok()) {
      CHECK(absl::StartsWith(fields.status().message(), "input"));
      continue;
    }
    CHECK(inputs.size() == one.inputs);
    CHECK(list == one.list);
  }
  const json many = {{"input", std::vector<std::string>(65, "a")}};
  JsonFields fields(many);
  std::vector<v1::Input> inputs;
  bool list = false;
  fields.ReadInputs("input", &inputs, &list);
  CHECK(fields.status().message() == "input: must hold 1 to 64, got 65");
}

TEST_CASE("Members that cannot act are refused unless they are harmless", "[json]") {
  const json body = Body(R"({"a":0,"b":0.5,"c":null,"d":{}})");
  JsonFields fields(body);
  fields.Refuse("a", {"0", "0.0"}, "not supported");
  fields.Refuse("c", {}, "not supported");
  fields.Refuse("d", {"{}"}, "not supported");
  CHECK(fields.status().ok());
  fields.Refuse("b", {"0", "0.0"}, "not supported");
  CHECK(fields.status().message() == "b: not supported");
}

TEST_CASE("A body that is not an object is an error", "[json]") {
  for (const char* text : {"null", "[]", "5", "\"a\""}) {
    const json body = Body(text);
    JsonFields fields(body), inner(body, "parameters.");
    CHECK(absl::StartsWith(fields.status().message(), "body: expected a JSON object"));
    CHECK(absl::StartsWith(inner.status().message(), "parameters: expected a JSON object"));
    CHECK(fields.Find("a") == nullptr);
  }
}

}  // namespace
}  // namespace quintet
