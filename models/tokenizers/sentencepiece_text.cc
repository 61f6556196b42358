// Normalisation and decoding of SentencePiece models.
#include "models/tokenizers/sentencepiece.h"
#include "models/tokenizers/unicode.h"

namespace quintet {
namespace {

constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581

class SentencePieceNormalizer : public Normalizer {
 public:
  SentencePieceNormalizer(Charsmap charsmap, KeySearch user_defined, SentencePieceSpaces spaces)
      : charsmap_(std::move(charsmap)),
        user_defined_(std::move(user_defined)),
        spaces_(spaces),
        space_(spaces.escape ? kSpaceSymbol : " ") {}

  absl::Status Apply(AlignedText* text) const override {
    const std::string_view view = text->text;
    KeyMatches symbols = user_defined_.Find(view);
    size_t at = 0;
    if (spaces_.remove_extra) {
      while (at < view.size()) {
        const Step step = Next(view, at, &symbols);
        if (step.replacement != " ") break;
        at += step.length;
      }
    }
    if (at == view.size()) {
      *text = text->Slice(0, 0);
      return absl::OkStatus();
    }
    Rewriter rewriter(*text);
    // Ends of the result after each character, so that the spaces at its end can be taken back.
    size_t solid = 0;  // bytes up to the last non-space
    const auto put = [&](std::string_view bytes, size_t begin, size_t end) {
      rewriter.Replace(bytes, begin, end);
      if (bytes != space_) solid = rewriter.size();
    };
    if (spaces_.add_dummy_prefix && !spaces_.suffix) put(space_, at, at + 1);
    bool after_space = spaces_.remove_extra;
    const size_t bytes = view.size();
    while (at < bytes && rewriter.size() <= bytes + kMostAddedBytes) {
      size_t run = at;
      while (run < view.size() && IsPlain(view, run, &symbols)) ++run;
      if (run > at) {
        rewriter.Keep(at, run);
        solid = rewriter.size();
        after_space = false;
        at = run;
        continue;
      }
      const Step step = Next(view, at, &symbols);
      std::string_view replacement = step.replacement;
      while (after_space && !replacement.empty() && replacement[0] == ' ')
        replacement.remove_prefix(1);
      for (size_t i = 0; i < replacement.size();) {
        int length;
        DecodeUtf8(replacement.data() + i, &length);
        const std::string_view character = replacement.substr(i, static_cast<size_t>(length));
        put(character == " " ? space_ : character, at, at + step.length);
        i += static_cast<size_t>(length);
      }
      if (!replacement.empty()) after_space = spaces_.remove_extra && replacement.back() == ' ';
      at += step.length;
    }
    if (absl::Status status = CheckGrowth(bytes, rewriter.size()); !status.ok()) return status;
    AlignedText normalized = rewriter.Take();
    if (spaces_.remove_extra && solid < normalized.text.size())
      normalized = normalized.Slice(0, solid);
    if (spaces_.add_dummy_prefix && spaces_.suffix) {
      normalized.text.append(space_);
      if (normalized.tracked) {
        const uint32_t end = normalized.end.empty() ? 0 : normalized.end.back();
        normalized.begin.resize(normalized.text.size(), end);
        normalized.end.resize(normalized.text.size(), end);
      }
    }
    *text = std::move(normalized);
    return absl::OkStatus();
  }

 private:
  struct Step {
    size_t length;
    std::string_view replacement;
  };
  // An ASCII character other than the space that stays as it is.
  bool IsPlain(std::string_view view, size_t at, KeyMatches* symbols) const {
    const uint8_t c = static_cast<uint8_t>(view[at]);
    const uint8_t next = at + 1 < view.size() ? static_cast<uint8_t>(view[at + 1]) : 128;
    return c != ' ' && c < 128 && next <= 128 && charsmap_.Untouched(c, next) &&
           symbols->LengthAt(at) == 0;
  }
  Step Next(std::string_view view, size_t at, KeyMatches* symbols) const {
    const std::string_view rest = view.substr(at);
    if (const size_t symbol = symbols->LengthAt(at); symbol > 0)
      return {symbol, rest.substr(0, symbol)};
    const Charsmap::Match match = charsmap_.Longest(rest);
    if (match.length > 0) return {match.length, match.replacement};
    int length;
    DecodeUtf8(rest.data(), &length);
    return {static_cast<size_t>(length), rest.substr(0, static_cast<size_t>(length))};
  }

  Charsmap charsmap_;
  KeySearch user_defined_;
  SentencePieceSpaces spaces_;
  std::string_view space_;
};

class SentencePieceDecoder : public Decoder {
 public:
  SentencePieceDecoder(SentencePieceSpaces spaces, bool has_bytes)
      : spaces_(spaces), has_bytes_(has_bytes) {}

  void Apply(std::vector<std::string>* tokens) const override {
    std::string text, bytes;
    bool at_start = spaces_.add_dummy_prefix || spaces_.remove_extra;
    const auto flush = [&] {
      text += RepairUtf8(bytes, InvalidUtf8::kByte);
      bytes.clear();
    };
    for (const std::string& token : *tokens) {
      const int byte = has_bytes_ ? BytePieceValue(token) : -1;
      if (byte >= 0) {
        bytes.push_back(static_cast<char>(byte));
        continue;
      }
      flush();
      std::string_view rest = token;
      if (!text.empty()) at_start = false;
      if (at_start && rest.substr(0, kSpaceSymbol.size()) == kSpaceSymbol) {
        rest.remove_prefix(kSpaceSymbol.size());
        if (!spaces_.remove_extra) at_start = false;
      }
      for (size_t at = rest.find(kSpaceSymbol); at != std::string_view::npos;
           at = rest.find(kSpaceSymbol)) {
        text.append(rest.substr(0, at)).push_back(' ');
        rest.remove_prefix(at + kSpaceSymbol.size());
      }
      text.append(rest);
    }
    flush();
    tokens->assign(1, std::move(text));
  }

 private:
  SentencePieceSpaces spaces_;
  bool has_bytes_;
};

}  // namespace

NormalizerPtr MakeSentencePieceNormalizer(Charsmap charsmap, KeySearch user_defined,
                                          SentencePieceSpaces spaces) {
  return std::make_unique<SentencePieceNormalizer>(std::move(charsmap), std::move(user_defined),
                                                   spaces);
}

DecoderPtr MakeSentencePieceDecoder(SentencePieceSpaces spaces, bool has_bytes) {
  return std::make_unique<SentencePieceDecoder>(spaces, has_bytes);
}

}  // namespace quintet
