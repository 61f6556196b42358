#include "server/trace_context.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace quintet {
namespace {

// The form of a traceparent: VERSION-TRACE_ID-SPAN_ID-FLAGS, with 2, 32, 16 and 2 digits.
constexpr size_t kTraceIdAt = 3, kSpanIdAt = 36, kFlagsAt = 53, kParentSize = 55;
constexpr size_t kMaxMembers = 32, kMaxKey = 256, kMaxValue = 256;  // of a tracestate

// Returns the value of a lowercase hexadecimal digit, or -1.
int DigitOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Reads two digits for each byte of `to`, beginning at text[0]. Returns false if there are others.
bool ReadHex(absl::string_view text, std::span<uint8_t> to) {
  for (size_t i = 0; i < to.size(); ++i) {
    const int high = DigitOf(text[2 * i]), low = DigitOf(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    to[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return true;
}

bool ReadParent(absl::string_view text, TraceContext* context) {
  if (text.size() < kParentSize) return false;
  uint8_t version = 0;
  if (!ReadHex(text, {&version, 1}) || version == 0xff) return false;
  // Later versions may append fields, version 0 has none.
  if (text.size() > kParentSize && (version == 0 || text[kParentSize] != '-')) return false;
  if (text[kTraceIdAt - 1] != '-' || text[kSpanIdAt - 1] != '-' || text[kFlagsAt - 1] != '-') {
    return false;
  }
  return ReadHex(text.substr(kTraceIdAt), context->trace_id) &&
         ReadHex(text.substr(kSpanIdAt), context->span_id) &&
         ReadHex(text.substr(kFlagsAt), {&context->flags, 1}) && context->valid();
}

bool IsLowerOrDigit(char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); }

bool IsKey(absl::string_view key) {
  if (key.empty() || key.size() > kMaxKey || !IsLowerOrDigit(key[0])) return false;
  return std::all_of(key.begin(), key.end(), [](char c) {
    return IsLowerOrDigit(c) || absl::string_view("_-*/@").find(c) != absl::string_view::npos;
  });
}

bool IsValue(absl::string_view value) {
  if (value.empty() || value.size() > kMaxValue || value.back() == ' ') return false;
  return std::all_of(value.begin(), value.end(),
                     [](char c) { return c >= ' ' && c <= '~' && c != ',' && c != '='; });
}

// Returns the tracestate without its empty members; nullopt if it does not conform.
std::optional<std::string> ReadState(std::span<const absl::string_view> states) {
  std::vector<absl::string_view> members, keys;
  size_t size = 0;
  for (const absl::string_view state : states) {
    size += state.size() + 1;
    if (size > kMaxTraceState + 1) return std::nullopt;
    for (absl::string_view member : absl::StrSplit(state, ',')) {
      // A value may begin with spaces, but does not end with one.
      member = absl::StripAsciiWhitespace(member);
      if (member.empty()) continue;
      const size_t equals = member.find('=');
      if (equals == absl::string_view::npos || members.size() == kMaxMembers) return std::nullopt;
      const absl::string_view key = member.substr(0, equals);
      if (!IsKey(key) || !IsValue(member.substr(equals + 1))) return std::nullopt;
      if (std::find(keys.begin(), keys.end(), key) != keys.end()) return std::nullopt;
      keys.push_back(key);
      members.push_back(member);
    }
  }
  return absl::StrJoin(members, ",");
}

}  // namespace

TraceContext ParseTraceContext(std::span<const absl::string_view> parents,
                               std::span<const absl::string_view> states) {
  TraceContext context;
  // Several parents contradict each other.
  if (parents.size() != 1 || !ReadParent(absl::StripAsciiWhitespace(parents[0]), &context)) {
    return {};
  }
  context.state = ReadState(states).value_or("");
  return context;
}

std::string HexText(std::span<const uint8_t> id) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : id) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

}  // namespace quintet
