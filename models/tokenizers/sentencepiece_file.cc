#include "models/tokenizers/sentencepiece_file.h"

#include <cstring>

namespace quintet {
namespace {

enum WireType : uint64_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

// Reads the fields of one protocol buffer message.
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

  // Whether the field has this number and type. A field with another type counts as unknown.
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

bool ReadNormalizer(std::string_view bytes, SentencePieceFile* file) {
  WireReader fields(bytes);
  while (fields.Next()) {
    if (fields.Is(2, kLength)) file->charsmap = fields.bytes();
    if (fields.Is(3, kVarint)) file->add_dummy_prefix = fields.number() != 0;
    if (fields.Is(4, kVarint)) file->remove_extra_whitespaces = fields.number() != 0;
    if (fields.Is(5, kVarint)) file->escape_whitespaces = fields.number() != 0;
  }
  return fields.good();
}

bool ReadTrainer(std::string_view bytes, SentencePieceFile* file) {
  WireReader fields(bytes);
  while (fields.Next()) {
    if (fields.Is(3, kVarint)) file->model_type = static_cast<int32_t>(fields.number());
    if (fields.Is(24, kVarint)) file->whitespace_as_suffix = fields.number() != 0;
    if (fields.Is(35, kVarint)) file->byte_fallback = fields.number() != 0;
  }
  return fields.good();
}

void PutVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

void PutNumber(uint64_t field, uint64_t value, std::string* out) {
  PutVarint(field << 3 | kVarint, out);
  PutVarint(value, out);
}

void PutBytes(uint64_t field, std::string_view bytes, std::string* out) {
  PutVarint(field << 3 | kLength, out);
  PutVarint(bytes.size(), out);
  out->append(bytes);
}

}  // namespace

std::optional<SentencePieceFile> ReadSentencePieceFile(std::string_view bytes) {
  SentencePieceFile file;
  WireReader fields(bytes);
  while (fields.Next()) {
    if (fields.Is(1, kLength) && !ReadPiece(fields.bytes(), &file.pieces.emplace_back())) {
      return std::nullopt;
    }
    if (fields.Is(2, kLength) && !ReadTrainer(fields.bytes(), &file)) return std::nullopt;
    if (fields.Is(3, kLength) && !ReadNormalizer(fields.bytes(), &file)) return std::nullopt;
  }
  if (!fields.good()) return std::nullopt;
  return file;
}

std::string WriteSentencePieceFile(const SentencePieceFile& file) {
  std::string out, part;
  for (const SentencePieceFile::Piece& piece : file.pieces) {
    part.clear();
    PutBytes(1, piece.piece, &part);
    PutVarint(2 << 3 | kFixed32, &part);
    part.append(reinterpret_cast<const char*>(&piece.score), sizeof(piece.score));
    PutNumber(3, static_cast<uint64_t>(int64_t{piece.type}), &part);
    PutBytes(1, part, &out);
  }
  part.clear();
  PutNumber(3, static_cast<uint64_t>(int64_t{file.model_type}), &part);
  PutNumber(24, file.whitespace_as_suffix ? 1 : 0, &part);
  PutNumber(35, file.byte_fallback ? 1 : 0, &part);
  PutBytes(2, part, &out);
  part.clear();
  PutBytes(2, file.charsmap, &part);
  PutNumber(3, file.add_dummy_prefix ? 1 : 0, &part);
  PutNumber(4, file.remove_extra_whitespaces ? 1 : 0, &part);
  PutNumber(5, file.escape_whitespaces ? 1 : 0, &part);
  PutBytes(3, part, &out);
  return out;
}

}  // namespace quintet
