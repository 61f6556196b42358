#include "models/tokenizers/tokenizer_file.h"

#include <cmath>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/find_model.h"
#include "models/checkpoint/gguf.h"
#include "models/checkpoint/text_encoder_file.h"
#include "models/tokenizers/sentencepiece_file.h"
#include "models/tokenizers/token_model.h"

namespace quintet {
namespace {

// llama.cpp pads the vocabulary to the number of rows of the embedding with unused pieces [PAD...],
// and adds the sentinels of added_tokens.json as user-defined pieces. spiece.model has neither.
bool IsFiller(const std::string& token, int32_t type) {
  return (type == kUnusedPiece && absl::StartsWith(token, "[PAD")) ||
         (type == kUserDefinedPiece && absl::StartsWith(token, "<extra_id_"));
}

absl::StatusOr<std::string> SentencePieceOfGguf(const GgufReader& reader) {
  const GgufHeader& header = reader.header();
  const std::string where = absl::StrCat(reader.name(), ": tokenizer.ggml.");
  const std::string_view model = header.Text("tokenizer.ggml.model");
  if (model != "t5") {
    return absl::NotFoundError(
        absl::StrCat(where, "model: expected t5, got \"", Printable(model), "\""));
  }
  QT_ASSIGN_OR_RETURN(std::vector<std::string> tokens,
                      header.Strings("tokenizer.ggml.tokens", kMaxPieceBytes));
  QT_ASSIGN_OR_RETURN(const std::vector<double> scores, header.Numbers("tokenizer.ggml.scores"));
  QT_ASSIGN_OR_RETURN(const std::vector<double> types, header.Numbers("tokenizer.ggml.token_type"));
  if (scores.size() != tokens.size() || types.size() != tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat(where, "tokens: ", tokens.size(),
                                                   " tokens, but ", scores.size(), " scores and ",
                                                   types.size(), " token types"));
  }
  SentencePieceFile file;
  for (size_t i = 0; i < tokens.size(); ++i) {
    constexpr double kLast = int32_t{kBytePiece};
    const bool known = types[i] >= 1 && types[i] <= kLast && types[i] == std::floor(types[i]);
    const int32_t type = known ? static_cast<int32_t>(types[i]) : 0;
    file.pieces.push_back({tokens[i], static_cast<float>(scores[i]), type});
    file.byte_fallback |= type == kBytePiece;
  }
  while (!file.pieces.empty() &&
         IsFiller(tokens[file.pieces.size() - 1], file.pieces.back().type)) {
    file.pieces.pop_back();
  }
  const auto flag = [&](const char* key) {
    return header.Integer(absl::StrCat("tokenizer.ggml.", key)).value_or(1) != 0;
  };
  file.add_dummy_prefix = flag("add_space_prefix");
  file.remove_extra_whitespaces = flag("remove_extra_whitespaces");
  std::string charsmap;
  if (header.Find("tokenizer.ggml.precompiled_charsmap") != nullptr) {
    QT_ASSIGN_OR_RETURN(charsmap, header.Bytes("tokenizer.ggml.precompiled_charsmap"));
  }
  file.charsmap = charsmap;
  return WriteSentencePieceFile(file);
}

}  // namespace

absl::StatusOr<std::string> EmbeddedSentencePiece(const std::string& file) {
  // If the file is a symbolic link, FindModel or FindTokenizer has already checked it.
  constexpr bool kFollow = true;
  if (ModelFormatOf(file) == ModelFormat::kGguf) {
    QT_ASSIGN_OR_RETURN(const GgufReader reader, GgufReader::Open(file, kFollow));
    return SentencePieceOfGguf(reader);
  }
  QT_ASSIGN_OR_RETURN(const TextEncoderFile reader, TextEncoderFile::Open(file, kFollow));
  return reader.SentencePieceModel();
}

}  // namespace quintet
