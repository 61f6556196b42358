// UTF-8 and the properties of code points, at the versions of Unicode that Hugging Face's
// tokenizers library has. All functions are thread safe; the tables are unpacked at the first use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quintet {

inline constexpr uint32_t kCodePoints = 0x110000;
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Bytes of the valid UTF-8 sequence at the start of `text`; 0 when there is none (surrogates and
// overlong forms are invalid).
int Utf8Length(std::string_view text);
bool IsUtf8(std::string_view text);
// The first code point of valid, non-empty UTF-8; *length gets its bytes.
uint32_t DecodeUtf8(const char* text, int* length);
void AppendUtf8(uint32_t code_point, std::string* text);
inline bool IsUtf8Continuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// `text` with invalid bytes replaced. kPart: one U+FFFD for each maximal invalid part (WHATWG,
// Rust, Python); kDrop: none at all.
enum class InvalidUtf8 : uint8_t { kPart, kDrop };
std::string RepairUtf8(std::string_view text, InvalidUtf8 policy);
// Bytes of the maximal invalid part at the start of `text`, where Utf8Length is 0.
size_t InvalidPartLength(std::string_view text);

// General categories, in the order of kCategoryRuns.
enum class Category : uint8_t {
  kCn,
  kLu,
  kLl,
  kLt,
  kLm,
  kLo,
  kMn,
  kMc,
  kMe,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPs,
  kPe,
  kPi,
  kPf,
  kPo,
  kSm,
  kSc,
  kSk,
  kSo,
  kZs,
  kZl,
  kZp,
  kCc,
  kCf,
  kCo,
};

struct UnicodeTables;
const UnicodeTables& Unicode();

enum UnicodeFlag : uint8_t {
  kWhiteSpace = 1,
  kWord = 2,
  kNumber = 4,
  kPunctuation = 8,
  kAccent = 16
};

struct UnicodeTables {
  // [kCodePoints] each.
  const uint8_t* category;   // Category
  const uint8_t* flags;      // UnicodeFlag bits
  const uint8_t* grapheme;   // GraphemeBreak, 16 pictographic, 32 * conjunct kind
  const uint8_t* combining;  // canonical combining class

  bool Has(uint32_t code_point, UnicodeFlag flag) const { return (flags[code_point] & flag) != 0; }
  // Code points that one maps to; empty where it maps to itself.
  std::u32string_view Canonical(uint32_t code_point) const;      // NFD, Hangul aside
  std::u32string_view Compatibility(uint32_t code_point) const;  // NFKD, Hangul aside
  std::u32string_view Lowercase(uint32_t code_point) const;
  uint32_t Compose(uint32_t first,
                   uint32_t second) const;  // 0 when the two do not compose; Hangul included
};

// Bytes of the extended grapheme cluster (UAX 29) that starts `text` (valid UTF-8).
size_t GraphemeLength(std::string_view text);

}  // namespace quintet
