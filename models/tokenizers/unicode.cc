#include "models/tokenizers/unicode.h"

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "models/tokenizers/base64.h"
#include "models/tokenizers/unicode_tables.h"

namespace quintet {
namespace {

class VarintReader {
 public:
  explicit VarintReader(const char* base64) : data_(DecodeBase64(base64).value()) {}
  bool done() const { return at_ == data_.size(); }
  uint32_t Next() {
    uint32_t value = 0;
    for (int shift = 0;; shift += 7) {
      const uint8_t byte = static_cast<uint8_t>(data_.at(at_++));
      value |= static_cast<uint32_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
  }

 private:
  std::string data_;
  size_t at_ = 0;
};

std::vector<uint8_t> UnpackRuns(const char* base64) {
  std::vector<uint8_t> table(kCodePoints, 0);
  VarintReader reader(base64);
  uint32_t start = 0, value = 0;
  while (!reader.done()) {
    const uint32_t next = start + reader.Next();
    std::fill(table.begin() + start, table.begin() + next, static_cast<uint8_t>(value));
    value = reader.Next();
    start = next;
  }
  std::fill(table.begin() + start, table.end(), static_cast<uint8_t>(value));
  return table;
}

struct Mappings {
  std::u32string text;
  // Maps a code point to {begin, length} of its replacement, a range of characters of `text`.
  absl::flat_hash_map<uint32_t, std::pair<uint32_t, uint32_t>> places;

  explicit Mappings(const char* base64) {
    VarintReader reader(base64);
    uint32_t code_point = 0;
    while (!reader.done()) {
      code_point += reader.Next();
      const uint32_t length = reader.Next();
      places[code_point] = {static_cast<uint32_t>(text.size()), length};
      for (uint32_t i = 0; i < length; ++i) text.push_back(reader.Next());
    }
  }
  std::u32string_view Find(uint32_t code_point) const {
    const auto it = places.find(code_point);
    if (it == places.end()) return {};
    return std::u32string_view(text).substr(it->second.first, it->second.second);
  }
};

struct TableStorage {
  std::vector<uint8_t> category = UnpackRuns(kCategoryRuns);
  std::vector<uint8_t> flags = UnpackRuns(kFlagRuns);
  std::vector<uint8_t> grapheme = UnpackRuns(kGraphemeRuns);
  std::vector<uint8_t> combining = UnpackRuns(kCombiningRuns);
  Mappings canonical{kCanonicalMappings};
  Mappings compatibility{kCompatibilityMappings};
  Mappings lowercase{kLowercaseMappings};
  absl::flat_hash_map<uint64_t, uint32_t> compositions;
  UnicodeTables tables{category.data(), flags.data(), grapheme.data(), combining.data()};

  TableStorage() {
    VarintReader reader(kCompositions);
    uint32_t first = 0;
    while (!reader.done()) {
      first += reader.Next();
      const uint64_t second = reader.Next();
      compositions[static_cast<uint64_t>(first) << 32 | second] = reader.Next();
    }
  }
};

const TableStorage& LoadedTables() {
  // The tables are never destroyed, because other threads may still use them while the process
  // exits.
  static const TableStorage* const storage = new TableStorage;
  return *storage;
}

}  // namespace

const UnicodeTables& Unicode() { return LoadedTables().tables; }

std::u32string_view UnicodeTables::Canonical(uint32_t code_point) const {
  return LoadedTables().canonical.Find(code_point);
}

std::u32string_view UnicodeTables::Compatibility(uint32_t code_point) const {
  const std::u32string_view mapped = LoadedTables().compatibility.Find(code_point);
  return mapped.empty() ? Canonical(code_point) : mapped;
}

std::u32string_view UnicodeTables::Lowercase(uint32_t code_point) const {
  return LoadedTables().lowercase.Find(code_point);
}

uint32_t UnicodeTables::Compose(uint32_t first, uint32_t second) const {
  // Compositions to Hangul syllables are computed, not stored in a table (Unicode Standard, section
  // 3.12).
  constexpr uint32_t kL = 0x1100, kV = 0x1161, kT = 0x11A7, kS = 0xAC00, kVs = 21, kTs = 28;
  if (first - kL < 19 && second - kV < kVs) return kS + ((first - kL) * kVs + second - kV) * kTs;
  if (first - kS < 11172 && (first - kS) % kTs == 0 && second - kT - 1 < kTs - 1) {
    return first + (second - kT);
  }
  const auto& compositions = LoadedTables().compositions;
  const auto it = compositions.find(static_cast<uint64_t>(first) << 32 | second);
  return it == compositions.end() ? 0 : it->second;
}

int Utf8Length(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const auto continues = [&](size_t i) { return i < text.size() && IsUtf8Continuation(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4 || !continues(1)) return 0;
  if (lead < 0xE0) return 2;
  const uint8_t second = byte(1);
  if (lead < 0xF0) {
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F)) return 0;
    return continues(2) ? 3 : 0;
  }
  if ((lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) return 0;
  return continues(2) && continues(3) ? 4 : 0;
}

size_t InvalidPartLength(std::string_view text) {
  const uint8_t lead = static_cast<uint8_t>(text[0]);
  if (lead < 0xC2 || lead > 0xF4 || text.size() < 2 || !IsUtf8Continuation(text[1])) return 1;
  const uint8_t second = static_cast<uint8_t>(text[1]);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F)) return 1;
  if ((lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) return 1;
  return lead >= 0xF0 && text.size() > 2 && IsUtf8Continuation(text[2]) ? 3 : 2;
}

bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const int length = Utf8Length(text.substr(i));
    if (length == 0) return false;
    i += static_cast<size_t>(length);
  }
  return true;
}

uint32_t DecodeUtf8(const char* text, int* length) {
  const auto byte = [&](int i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
  if (byte(0) < 0x80) {
    *length = 1;
    return byte(0);
  }
  if (byte(0) < 0xE0) {
    *length = 2;
    return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
  }
  if (byte(0) < 0xF0) {
    *length = 3;
    return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  }
  *length = 4;
  return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
}

void AppendUtf8(uint32_t code_point, std::string* text) {
  const auto put = [&](uint32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

std::string RepairUtf8(std::string_view text, InvalidUtf8 policy) {
  std::string repaired;
  repaired.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const int length = Utf8Length(text.substr(i));
    if (length > 0) {
      repaired.append(text, i, static_cast<size_t>(length));
      i += static_cast<size_t>(length);
      continue;
    }
    if (policy == InvalidUtf8::kPart) repaired.append(kReplacement);
    i += InvalidPartLength(text.substr(i));
  }
  return repaired;
}

}  // namespace quintet
