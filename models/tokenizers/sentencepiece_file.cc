#include "models/tokenizers/sentencepiece_file.h"

#include <cstring>

namespace quintet {
namespace {

enum WireType : uint64_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

// Reads the fields of one message.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  // Reads the next field. Returns false at the end of the message and at damaged bytes.
  bool Next() {
    if (rest_.empty()) return false;
    uint64_t tag = 0;
    good_ = TakeVarint(&tag) && tag >> 3 != 0 && tag <= UINT32_MAX && TakeValue(tag & 7);
    tag_ = tag;
    return good_;
  }
  bool good() const { return good_; }

  // Whether the field has this number and type; fields of other types are unknown ones.
  bool Is(uint64_t number, WireType type) const { return tag_ == (number << 3 | type); }
  uint64_t number() const { return number_; }        // kVarint
  std::string_view bytes() const { return bytes_; }  // the other types

 private:
  bool TakeVarint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      *value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  bool TakeBytes(uint64_t count) {
    if (count > rest_.size()) return false;
    bytes_ = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return true;
  }
  bool TakeValue(uint64_t type) {
    switch (type) {
      case kVarint:
        return TakeVarint(&number_);
      case kFixed64:
        return TakeBytes(8);
      case kFixed32:
        return TakeBytes(4);
      case kLength: {
        uint64_t length = 0;
        return TakeVarint(&length) && TakeBytes(length);
      }
      default:  // groups, which no release of SentencePiece writes
        return false;
    }
  }

  std::string_view rest_, bytes_;
  uint64_t tag_ = 0, number_ = 0;
  bool good_ = true;
};

bool ReadPiece(std::string_view bytes, SentencePieceFile::Piece* piece) {
  WireReader fields(bytes);
  while (fields.Next()) {
    if (fields.Is(1, kLength)) piece->piece = fields.bytes();
    if (fields.Is(2, kFixed32)) std::memcpy(&piece->score, fields.bytes().data(), sizeof(float));
    if (fields.Is(3, kVarint)) piece->type = static_cast<int32_t>(fields.number());
  }
  return fields.good();
}

bool ReadNormalizer(std::string_view bytes, std::string_view* charsmap) {
  WireReader fields(bytes);
  while (fields.Next()) {
    if (fields.Is(2, kLength)) *charsmap = fields.bytes();
  }
  return fields.good();
}

}  // namespace

std::optional<SentencePieceFile> ReadSentencePieceFile(std::string_view bytes) {
  SentencePieceFile file;
  WireReader fields(bytes);
  while (fields.Next()) {
    if (fields.Is(1, kLength) && !ReadPiece(fields.bytes(), &file.pieces.emplace_back())) {
      return std::nullopt;
    }
    if (fields.Is(3, kLength) && !ReadNormalizer(fields.bytes(), &file.charsmap)) {
      return std::nullopt;
    }
  }
  if (!fields.good()) return std::nullopt;
  return file;
}

}  // namespace quintet
