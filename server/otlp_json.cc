#include "server/otlp_json.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "models/checkpoint/json.h"
#include "server/json_value.h"

namespace quintet {
namespace {

// The version of OpenTelemetry's semantic conventions that the names of attributes follow.
constexpr char kSchema[] = "https://opentelemetry.io/schemas/1.37.0";
constexpr int kStatusError = 2;
// Bits of Span.flags above the 8 trace flags: the next bit is known; the parent is remote.
constexpr uint32_t kHasRemoteParent = 0x100, kRemoteParent = 0x200;
constexpr int kMaxResponseDepth = 8;  // of the JSON of a response

JsonValue AnyValue(const std::string& text) { return {{"stringValue", text}}; }
// 64-bit integers are strings in the JSON of protobuf messages.
JsonValue AnyValue(int64_t number) { return {{"intValue", absl::StrCat(number)}}; }
JsonValue AnyValue(double number) { return {{"doubleValue", number}}; }
JsonValue AnyValue(const std::vector<std::string>& texts) {
  JsonValue values = JsonValue::Array();
  for (const std::string& text : texts) values.push_back(AnyValue(text));
  return {{"arrayValue", JsonValue({{"values", std::move(values)}})}};
}

template <typename Value>
JsonValue KeyValue(const std::string& key, const Value& value) {
  return {{"key", key}, {"value", AnyValue(value)}};
}

std::string Nanoseconds(int64_t us) { return absl::StrCat(us, "000"); }

JsonValue SpanJson(const Span& span) {
  JsonValue json = {{"traceId", HexText(span.context.trace_id)},
                    {"spanId", HexText(span.context.span_id)}};
  if (!span.context.state.empty()) json["traceState"] = span.context.state;
  if (span.parent != SpanId{}) json["parentSpanId"] = HexText(span.parent);
  const uint32_t remote = kHasRemoteParent | (span.remote_parent ? kRemoteParent : 0);
  json["flags"] = uint32_t{span.context.flags} | (span.parent == SpanId{} ? 0 : remote);
  json["name"] = span.name;
  json["kind"] = static_cast<int>(span.kind);
  json["startTimeUnixNano"] = Nanoseconds(span.start_us);
  json["endTimeUnixNano"] = Nanoseconds(std::max(span.end_us, span.start_us));
  if (!span.attributes.empty()) {
    JsonValue attributes = JsonValue::Array();
    for (const SpanAttribute& attribute : span.attributes) {
      std::visit([&](const auto& value) { attributes.push_back(KeyValue(attribute.key, value)); },
                 attribute.value);
    }
    json["attributes"] = std::move(attributes);
  }
  if (span.failed) {
    json["status"] = JsonValue({{"code", kStatusError}, {"message", span.failure}});
  }
  return json;
}

}  // namespace

std::string OtlpRequest(const ResourceAttributes& resource, std::span<const Span> spans) {
  JsonValue attributes = JsonValue::Array();
  for (const auto& [key, value] : resource) attributes.push_back(KeyValue(key, value));
  JsonValue list = JsonValue::Array();
  for (const Span& span : spans) list.push_back(SpanJson(span));
  JsonValue scope = {{"scope", JsonValue({{"name", "quintet"}})},
                     {"spans", std::move(list)},
                     {"schemaUrl", kSchema}};
  JsonValue of_resource = {{"resource", JsonValue({{"attributes", std::move(attributes)}})},
                           {"scopeSpans", JsonValue::Array({std::move(scope)})},
                           {"schemaUrl", kSchema}};
  return JsonText(JsonValue({{"resourceSpans", JsonValue::Array({std::move(of_resource)})}}));
}

int64_t OtlpRejectedSpans(absl::string_view body) {
  const absl::StatusOr<JsonDocument> parsed =
      ParseJson({body.data(), body.size()}, "response", kMaxResponseDepth);
  if (!parsed.ok() || !(*parsed)->is_object()) return 0;
  const auto partial = (*parsed)->find("partialSuccess");
  if (partial == (*parsed)->end() || !partial->is_object()) return 0;
  const auto rejected = partial->find("rejectedSpans");
  if (rejected == partial->end()) return 0;
  int64_t count = 0;
  if (rejected->is_number_integer()) {
    count = rejected->get<int64_t>();
  } else if (!rejected->is_string() ||
             !absl::SimpleAtoi(rejected->get_ref<const std::string&>(), &count)) {
    return 0;
  }
  return std::max<int64_t>(count, 0);
}

}  // namespace quintet
