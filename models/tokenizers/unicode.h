// UTF-8, and properties of code points in the Unicode versions that Hugging Face's tokenizers
// library uses. All functions are thread safe. The tables are unpacked on first use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quintet {

inline constexpr uint32_t kCodePoints = 0x110000;
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Length in bytes (1 to 4) of the first code point of `text`; 0 if `text` is empty or does not
// begin with valid UTF-8. Surrogates and overlong forms are invalid.
int Utf8Length(std::string_view text);
bool IsUtf8(std::string_view text);
// Returns the first code point of `text`, which must be valid, non-empty UTF-8. *length receives
// its length in bytes.
uint32_t DecodeUtf8(const char* text, int* length);
void AppendUtf8(uint32_t code_point, std::string* text);
inline bool IsUtf8Continuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// How RepairUtf8 treats invalid UTF-8. kPart: each maximal invalid part is replaced by one U+FFFD
// (as in WHATWG, Rust and Python). kDrop: invalid bytes are removed.
enum class InvalidUtf8 : uint8_t { kPart, kDrop };
std::string RepairUtf8(std::string_view text, InvalidUtf8 policy);
// Length in bytes of the maximal invalid part at the start of `text`, which must not start with
// valid UTF-8.
size_t InvalidPartLength(std::string_view text);

// General categories of Unicode, in the order of their numbers in kCategoryRuns (unicode_tables.h).
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
  // Tables indexed by code point, each [kCodePoints].
  const uint8_t* category;   // Category
  const uint8_t* flags;      // UnicodeFlag bits
  const uint8_t* grapheme;   // GraphemeBreak | 16 if pictographic | 32 * conjunct kind
  const uint8_t* combining;  // canonical combining class

  bool Has(uint32_t code_point, UnicodeFlag flag) const { return (flags[code_point] & flag) != 0; }
  // Each of these functions returns the decomposition or the lowercase form of a code point; empty
  // if the result would be the code point itself.
  std::u32string_view Canonical(uint32_t code_point) const;      // NFD, without Hangul
  std::u32string_view Compatibility(uint32_t code_point) const;  // NFKD, without Hangul
  std::u32string_view Lowercase(uint32_t code_point) const;
  // Returns the canonical composition of two code points, Hangul included; 0 if they do not
  // compose.
  uint32_t Compose(uint32_t first, uint32_t second) const;
};

// Length in bytes of the extended grapheme cluster (UAX 29) at the start of `text` (valid UTF-8).
size_t GraphemeLength(std::string_view text);

}  // namespace quintet
