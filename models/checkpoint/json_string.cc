#include "models/checkpoint/json_string.h"

#include <cstdint>

namespace quintet {
namespace {

// Returns the length in bytes of the UTF-8 sequence at byte `at`; 0 if it is invalid (including
// overlong forms, surrogates and values above U+10FFFF).
size_t Utf8Length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> uint32_t {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0;
  };
  const auto continues = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const uint32_t first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return continues(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f)) return 0;
    return continues(1) && continues(2) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    if ((first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) return 0;
    return continues(1) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

void AppendCodePoint(uint32_t c, std::string* out) {
  if (c < 0x80) {
    *out += static_cast<char>(c);
  } else if (c < 0x800) {
    *out += static_cast<char>(0xc0 | c >> 6);
    *out += static_cast<char>(0x80 | (c & 63));
  } else if (c < 0x10000) {
    *out += static_cast<char>(0xe0 | c >> 12);
    *out += static_cast<char>(0x80 | (c >> 6 & 63));
    *out += static_cast<char>(0x80 | (c & 63));
  } else {
    *out += static_cast<char>(0xf0 | c >> 18);
    *out += static_cast<char>(0x80 | (c >> 12 & 63));
    *out += static_cast<char>(0x80 | (c >> 6 & 63));
    *out += static_cast<char>(0x80 | (c & 63));
  }
}

// Reads four hexadecimal digits at *at into *value.
bool ReadHex(std::string_view text, size_t* at, uint32_t* value) {
  *value = 0;
  for (int i = 0; i < 4; ++i, ++*at) {
    const char c = *at < text.size() ? text[*at] : '\0';
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return false;
    *value = *value * 16 + static_cast<uint32_t>(digit);
  }
  return true;
}

// Decodes an escape sequence, whose backslash has been read, and appends it to *value.
bool ReadEscape(std::string_view text, size_t* at, std::string* value) {
  if (*at >= text.size()) return false;
  const char kind = text[(*at)++];
  constexpr std::string_view kKinds = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
  if (const size_t i = kKinds.find(kind); i != kKinds.npos) {
    *value += kValues[i];
    return true;
  }
  uint32_t unit;
  if (kind != 'u' || !ReadHex(text, at, &unit)) return false;
  if (unit >= 0xdc00 && unit <= 0xdfff) return false;
  if (unit >= 0xd800 && unit <= 0xdbff) {
    uint32_t low;
    if (text.substr(*at, 2) != "\\u") return false;
    *at += 2;
    if (!ReadHex(text, at, &low) || low < 0xdc00 || low > 0xdfff) return false;
    unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
  }
  AppendCodePoint(unit, value);
  return true;
}

bool IsPlain(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x20 && byte < 0x80 && c != '"' && c != '\\';
}

}  // namespace

bool ReadJsonString(std::string_view text, size_t* at, std::string* value) {
  value->clear();
  if (*at >= text.size() || text[*at] != '"') return false;
  ++*at;
  while (*at < text.size()) {
    size_t end = *at;
    while (end < text.size() && IsPlain(text[end])) ++end;
    // A string without escapes ends after this first run of plain characters: reserve exactly the
    // string's size.
    if (value->empty()) value->reserve(end - *at);
    value->append(text.substr(*at, end - *at));
    *at = end;
    if (end == text.size()) return false;
    const char c = text[end];
    if (c == '"') {
      ++*at;
      return true;
    }
    if (c == '\\') {
      ++*at;
      if (!ReadEscape(text, at, value)) return false;
      continue;
    }
    const size_t length = static_cast<unsigned char>(c) < 0x20 ? 0 : Utf8Length(text, end);
    if (length == 0) return false;
    value->append(text.substr(end, length));
    *at += length;
  }
  return false;
}

}  // namespace quintet
