#include "models/tokenizers/byte_level.h"

#include <array>

#include "models/tokenizers/unicode.h"

namespace quintet {
namespace {

struct Tables {
  std::array<std::string, 256> characters;
  std::array<int, 324> bytes;  // [code point]: the byte that it stands for; -1: none

  Tables() {
    bytes.fill(-1);
    uint32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool itself =
          (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      const uint32_t code_point = itself ? static_cast<uint32_t>(byte) : next++;
      AppendUtf8(code_point, &characters[static_cast<size_t>(byte)]);
      bytes[code_point] = byte;
    }
  }
};

const Tables& ByteTables() {
  // The tables are never destroyed, because other threads may still use them while the process
  // exits.
  static const Tables* const tables = new Tables;
  return *tables;
}

}  // namespace

std::string_view ByteLevelCharacter(char byte) {
  return ByteTables().characters[static_cast<uint8_t>(byte)];
}

void AppendByteLevelCharacters(std::string_view bytes, std::string* text) {
  for (size_t at = 0; at < bytes.size();) {
    // Copy a whole run of printable ASCII bytes, each of which is its own character.
    size_t end = at;
    while (end < bytes.size() && bytes[end] > ' ' && bytes[end] < '\x7F') ++end;
    text->append(bytes.substr(at, end - at));
    if (end < bytes.size()) text->append(ByteLevelCharacter(bytes[end++]));
    at = end;
  }
}

int ByteLevelByte(uint32_t code_point) {
  const auto& bytes = ByteTables().bytes;
  return code_point < bytes.size() ? bytes[code_point] : -1;
}

void AppendByteLevelBytes(std::string_view text, std::string* bytes) {
  const size_t size = bytes->size();
  for (size_t at = 0; at < text.size();) {
    int length;
    const int byte = ByteLevelByte(DecodeUtf8(text.data() + at, &length));
    if (byte < 0) {
      bytes->resize(size);
      bytes->append(text);
      return;
    }
    bytes->push_back(static_cast<char>(byte));
    at += static_cast<size_t>(length);
  }
}

}  // namespace quintet
