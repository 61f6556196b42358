#include "models/tokenizers/byt5.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "models/tokenizers/unicode.h"

namespace quintet {
namespace {

constexpr int32_t kFirstByte = 3, kFirstSentinel = kFirstByte + 256;

class ByteModel : public TokenModel {
 public:
  ByteModel() {
    unknown = 2;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      std::string piece;
      // Spelling of a byte as in Hugging Face: the character whose code point is the byte's value.
      AppendUtf8(byte, &piece);
      QT_CHECK(vocabulary.Add(piece, kFirstByte + static_cast<int32_t>(byte)).ok());
    }
  }
  void Encode(std::string_view piece, TokenList* tokens) const override {
    tokens->Reserve(piece.size());
    for (uint32_t i = 0; i < piece.size(); ++i) {
      tokens->Add(kFirstByte + static_cast<uint8_t>(piece[i]), i, i + 1);
    }
  }
};

// Decodes ByT5's tokens: a token of one character below U+0100 is that byte. Other tokens are added
// tokens and decode to their own spelling.
class ByteDecoder : public Decoder {
 public:
  void Apply(std::vector<std::string>* tokens) const override {
    std::string bytes;
    for (const std::string& token : *tokens) {
      if (token.empty() || Utf8Length(token) != static_cast<int>(token.size())) {
        bytes += token;
        continue;
      }
      int length;
      const uint32_t code_point = DecodeUtf8(token.data(), &length);
      if (code_point < 256) {
        bytes.push_back(static_cast<char>(code_point));
      } else {
        bytes += token;
      }
    }
    tokens->assign(1, RepairUtf8(bytes, InvalidUtf8::kDrop));
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Tokenizer>> MakeByT5(const TokenizerSettings& given) {
  PipelineParts parts;
  parts.added.StripSeparators();
  parts.model = std::make_unique<ByteModel>();
  parts.decoder = std::make_unique<ByteDecoder>();
  const auto add = [&](std::string content, int32_t id, bool strips) {
    AddedToken token;
    token.content = std::move(content);
    token.id = id;
    token.special = true;
    token.lstrip = token.rstrip = strips;
    parts.added.Add(token);
  };
  TokenizerSettings settings = given;
  const auto named = [&](std::optional<AddedToken>* token, const char* content, int32_t id) {
    if (!*token) {
      token->emplace();
      (*token)->content = content;
      (*token)->special = true;
    }
    add((*token)->content, id, true);
  };
  named(&settings.pad, "<pad>", 0);
  named(&settings.eos, "</s>", 1);
  named(&settings.unk, "<unk>", 2);
  const int64_t sentinels = settings.extra_ids.value_or(125);
  for (int64_t i = 0; i < sentinels; ++i) {
    add(absl::StrCat("<extra_id_", i, ">"), kFirstSentinel + static_cast<int32_t>(i), false);
  }
  if (absl::Status status = ApplySettings(settings, &parts); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("tokenizer_config.json: ", status.message()));
  }
  parts.suffix = {parts.ids.eos};
  parts.suffix_once = true;
  parts.clean_up_spaces = settings.clean_up_spaces;
  return Pipeline::Make(std::move(parts));
}

}  // namespace quintet
