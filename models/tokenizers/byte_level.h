// GPT-2's printable stand-ins for bytes: 33..126, 161..172 and 174..255 stand for themselves, the
// others, ascending, for U+0100 on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quintet {

// UTF-8 of the character that stands for a byte; valid for ever.
std::string_view ByteLevelCharacter(char byte);
inline constexpr uint32_t kByteLevelSpace = 0x120;  // the character that stands for a space
// Appends the characters that stand for `bytes`.
void AppendByteLevelCharacters(std::string_view bytes, std::string* text);
// The byte that a character stands for; -1 when it stands for none.
int ByteLevelByte(uint32_t code_point);
// Appends the bytes that the characters of `text` (valid UTF-8) stand for; `text` as it is when one
// stands for none.
void AppendByteLevelBytes(std::string_view text, std::string* bytes);

// How byte-level BPE is split into words, GPT-2's pattern.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace quintet
