// GPT-2's byte-level encoding: each byte is written as a printable character. Bytes 33..126,
// 161..172 and 174..255 map to the code point of the same number; the other bytes, in ascending
// order, map to U+0100 and up.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quintet {

// Returns the character that stands for a byte, in UTF-8. The view is valid forever.
std::string_view ByteLevelCharacter(char byte);
inline constexpr uint32_t kByteLevelSpace = 0x120;  // the character for a space
// Appends to *text the character that stands for each byte of `bytes`.
void AppendByteLevelCharacters(std::string_view bytes, std::string* text);
// Returns the byte that a character stands for; -1: none.
int ByteLevelByte(uint32_t code_point);
// Appends to *bytes the byte that each character of `text` (valid UTF-8) stands for. If a character
// stands for no byte, appends `text` unchanged instead.
void AppendByteLevelBytes(std::string_view text, std::string* bytes);

// GPT-2's regular expression, which splits text into words before byte-level BPE.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace quintet
