// GPT-2's printable characters for bytes. Bytes 33..126, 161..172 and 174..255 map to the code
// point of the same number; the other bytes, in ascending order, map to U+0100 and up.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quintet {

// UTF-8 of the character for a byte. The view never expires.
std::string_view ByteLevelCharacter(char byte);
inline constexpr uint32_t kByteLevelSpace = 0x120;  // the character for a space
// Appends the character of each byte of `bytes`.
void AppendByteLevelCharacters(std::string_view bytes, std::string* text);
// The byte of a character; -1 if the character stands for no byte.
int ByteLevelByte(uint32_t code_point);
// Appends the bytes of the characters of `text` (valid UTF-8). If one of them stands for no byte,
// appends `text` unchanged instead.
void AppendByteLevelBytes(std::string_view text, std::string* bytes);

// GPT-2's pattern, which splits text into words before byte-level BPE.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace quintet
