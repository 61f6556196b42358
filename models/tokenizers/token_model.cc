#include "models/tokenizers/token_model.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace quintet {
namespace {

absl::string_view Shown(std::string_view piece) {
  return absl::string_view(piece.data(), piece.size()).substr(0, 64);
}

}  // namespace

void TokenList::Reserve(size_t count) {
  constexpr size_t kSpecials = 8;
  const size_t needed = ids.size() + count + kSpecials;
  if (needed <= ids.capacity()) return;
  // At least double the capacity. Reserve is called for each piece of a text; growing by `count`
  // each time would take quadratic time.
  const size_t room = std::max(needed, 2 * ids.capacity());
  ids.reserve(room);
  if (tracked) spans.reserve(room);
}

absl::Status Vocabulary::Add(std::string_view piece, int64_t id) {
  if (id < 0 || id >= kMaxVocabulary) {
    return absl::InvalidArgumentError(absl::StrCat(
        "piece \"", Shown(piece), "\": expected an id in [0, ", kMaxVocabulary, "), got ", id));
  }
  if (piece.size() > kMaxPieceBytes) {
    return absl::InvalidArgumentError(absl::StrCat("piece ", id, ": expected at most ",
                                                   kMaxPieceBytes, " bytes, got ", piece.size()));
  }
  const size_t index = static_cast<size_t>(id);
  if (index >= pieces_.size()) {
    pieces_.resize(index + 1);
    present_.resize(index + 1, false);
  }
  if (present_[index]) {
    return absl::InvalidArgumentError(absl::StrCat("id ", id, " twice: \"", Shown(pieces_[index]),
                                                   "\" and \"", Shown(piece),
                                                   "\"; expected one piece each"));
  }
  const auto [it, fresh] = ids_.try_emplace(std::string(piece), static_cast<int32_t>(id));
  if (!fresh) {
    return absl::InvalidArgumentError(absl::StrCat("piece \"", Shown(piece), "\" twice: ids ",
                                                   it->second, " and ", id,
                                                   "; expected each piece once"));
  }
  pieces_[index] = std::string(piece);
  present_[index] = true;
  return absl::OkStatus();
}

int32_t Vocabulary::Find(std::string_view piece) const {
  const auto it = ids_.find(piece);
  return it == ids_.end() ? -1 : it->second;
}

const std::string& Vocabulary::Piece(int32_t id) const {
  // This string is never destroyed, because other threads may still use it while the process exits.
  static const std::string* const none = new std::string;
  return Has(id) ? pieces_[static_cast<size_t>(id)] : *none;
}

BytePieces::BytePieces(const Vocabulary& vocabulary) : ids(256) {
  for (int byte = 0; byte < 256; ++byte) {
    ids[static_cast<size_t>(byte)] = vocabulary.Find(absl::StrFormat("<0x%02X>", byte));
  }
}

bool BytePieces::HasAll(std::string_view bytes) const {
  return std::all_of(bytes.begin(), bytes.end(),
                     [&](char byte) { return ids[static_cast<uint8_t>(byte)] >= 0; });
}

bool BytePieces::Append(std::string_view bytes, uint32_t begin, TokenList* tokens) const {
  if (!HasAll(bytes)) return false;
  const uint32_t end = begin + static_cast<uint32_t>(bytes.size());
  for (const char byte : bytes) tokens->Add(ids[static_cast<uint8_t>(byte)], begin, end);
  return true;
}

int BytePieceValue(std::string_view piece) {
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return -1;
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  // Rust's number parser, which Hugging Face's tokenizers use, accepts a sign: "<0x+A>" is byte 10.
  const int high = piece[3] == '+' ? 0 : digit(piece[3]), low = digit(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace quintet
