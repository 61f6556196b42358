#include "models/tokenizers/normalizer.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/tokenizers/byte_level.h"
#include "models/tokenizers/unicode.h"

namespace quintet {

namespace {

// Calls f(code point, begin, end) for each character, which is bytes [begin, end) of `text`.
template <typename F>
void ForEachCharacter(std::string_view text, F f) {
  for (size_t at = 0; at < text.size();) {
    int length;
    const uint32_t code_point = DecodeUtf8(text.data() + at, &length);
    f(code_point, at, at + static_cast<size_t>(length));
    at += static_cast<size_t>(length);
  }
}

// Applies SentencePiece's precompiled rules (Charsmap). As in Hugging Face's tokenizers, a grapheme
// cluster of fewer than 6 bytes is first looked up as a whole: if rules match a prefix of it, the
// replacement of the shortest of these rules replaces the whole cluster. Otherwise each character
// is looked up on its own.
class PrecompiledNormalizer : public Normalizer {
 public:
  explicit PrecompiledNormalizer(Charsmap charsmap) : charsmap_(std::move(charsmap)) {}
  absl::Status Apply(AlignedText* text) const override {
    CharacterRewriter out(*text);
    const std::string_view view = text->text;
    const size_t bytes = view.size();
    for (size_t at = 0; at < bytes && out.size() <= bytes + kMaxAddedBytes;) {
      size_t run = at;
      while (run < view.size() && IsPlain(view, run)) ++run;
      if (run > at) {
        out.PutUnchanged(view.substr(at, run - at));
        at = run;
        continue;
      }
      const size_t end = at + ClusterLength(view.substr(at));
      const Charsmap::Match cluster =
          end - at < 6 ? charsmap_.Shortest(view.substr(at, end - at)) : Charsmap::Match{};
      if (cluster.length > 0) {
        Change(view.substr(at, end - at), cluster.replacement, &out);
        at = end;
      }
      while (at < end) {
        int length;
        DecodeUtf8(view.data() + at, &length);
        const std::string_view character = view.substr(at, static_cast<size_t>(length));
        const Charsmap::Match match = charsmap_.Shortest(character);
        Change(character, match.length > 0 ? match.replacement : character, &out);
        at += static_cast<size_t>(length);
      }
    }
    *text = out.Take();
    return CheckGrowth(bytes, text->text.size());
  }

 private:
  // True if the byte at `at` is a printable ASCII character that no rule changes and that is
  // followed by another printable ASCII character or by the end of the text.
  bool IsPlain(std::string_view view, size_t at) const {
    const auto printable = [&](size_t i) { return view[i] >= ' ' && view[i] < '\x7F'; };
    if (!printable(at)) return false;
    if (at + 1 == view.size()) return charsmap_.HasNoRule(static_cast<uint8_t>(view[at]), 128);
    return printable(at + 1) &&
           charsmap_.HasNoRule(static_cast<uint8_t>(view[at]), static_cast<uint8_t>(view[at + 1]));
  }

  static size_t ClusterLength(std::string_view rest) {
    // Fast path: a printable ASCII character followed by another one is a whole grapheme cluster.
    const auto plain = [&](size_t i) { return rest[i] >= ' ' && rest[i] < '\x7F'; };
    if (plain(0) && (rest.size() == 1 || plain(1))) return 1;
    return GraphemeLength(rest);
  }

  static void Change(std::string_view old_text, std::string_view new_text, CharacterRewriter* out) {
    int surplus = 0;  // number of old characters minus number of new ones so far
    ForEachCharacter(old_text, [&](uint32_t, size_t, size_t) { ++surplus; });
    ForEachCharacter(new_text, [&](uint32_t code_point, size_t, size_t) {
      out->Put(code_point, surplus > 0 ? 0 : 1);
      --surplus;
    });
    if (surplus > 0) out->Absorb(surplus);
  }

  Charsmap charsmap_;
};

class LowercaseNormalizer : public Normalizer {
 public:
  absl::Status Apply(AlignedText* text) const override {
    Rewriter rewriter(*text);
    ForEachCharacter(text->text, [&](uint32_t code_point, size_t begin, size_t end) {
      const std::u32string_view lower = Unicode().Lowercase(code_point);
      if (lower.empty()) return rewriter.Keep(begin, end);
      std::string bytes;
      for (const char32_t c : lower) AppendUtf8(c, &bytes);
      rewriter.Put(bytes, begin);
    });
    *text = rewriter.Take();
    return absl::OkStatus();
  }
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  absl::Status Apply(AlignedText* text) const override {
    size_t begin = text->text.size(), end = 0;
    ForEachCharacter(text->text, [&](uint32_t code_point, size_t from, size_t to) {
      if (Unicode().Has(code_point, kWhiteSpace)) return;
      begin = std::min(begin, from);
      end = to;
    });
    if (!left_) begin = 0;
    if (!right_) end = text->text.size();
    if (begin == 0 && end == text->text.size()) return absl::OkStatus();
    *text = begin < end ? text->Slice(begin, end) : text->Slice(0, 0);
    return absl::OkStatus();
  }

 private:
  bool left_, right_;
};

class StripAccentsNormalizer : public Normalizer {
 public:
  absl::Status Apply(AlignedText* text) const override {
    Rewriter rewriter(*text);
    ForEachCharacter(text->text, [&](uint32_t code_point, size_t begin, size_t end) {
      if (!Unicode().Has(code_point, kAccent)) rewriter.Keep(begin, end);
    });
    *text = rewriter.Take();
    return absl::OkStatus();
  }
};

class NmtNormalizer : public Normalizer {
 public:
  absl::Status Apply(AlignedText* text) const override {
    Rewriter rewriter(*text);
    ForEachCharacter(text->text, [&](uint32_t code_point, size_t begin, size_t end) {
      if (IsDropped(code_point)) return;
      if (IsSpace(code_point)) return rewriter.Put(" ", begin);
      rewriter.Keep(begin, end);
    });
    *text = rewriter.Take();
    return absl::OkStatus();
  }

 private:
  static bool IsDropped(uint32_t c) {
    return (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F ||
           c == 0x8F || c == 0x9F;
  }
  static bool IsSpace(uint32_t c) {
    return c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
           (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
           c == 0xFEFF || c == 0xFFFD;
  }
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  absl::Status Apply(AlignedText* text) const override {
    Rewriter rewriter(*text);
    const size_t bytes = text->text.size();
    size_t kept = 0;
    pattern_.ForEachMatch(text->text, [&](size_t begin, size_t end) {
      if (rewriter.size() > bytes + kMaxAddedBytes) return;
      rewriter.Keep(kept, begin);
      // As in Hugging Face's tokenizers, the new text has the same origin in the original input as
      // the last byte that it replaces.
      if (!text->text.empty()) rewriter.Put(content_, end > 0 ? end - 1 : 0);
      kept = end;
    });
    if (kept == 0 && rewriter.size() == 0) return absl::OkStatus();
    if (rewriter.size() <= bytes + kMaxAddedBytes) rewriter.Keep(kept, bytes);
    *text = rewriter.Take();
    return CheckGrowth(bytes, text->text.size());
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  absl::Status Apply(AlignedText* text) const override {
    if (text->text.empty()) return absl::OkStatus();
    Rewriter rewriter(*text);
    rewriter.Put(prefix_, 0);
    rewriter.Keep(0, text->text.size());
    *text = rewriter.Take();
    return absl::OkStatus();
  }

 private:
  std::string prefix_;
};

class ByteLevelNormalizer : public Normalizer {
 public:
  absl::Status Apply(AlignedText* text) const override {
    Rewriter rewriter(*text);
    for (size_t i = 0; i < text->text.size(); ++i)
      rewriter.Put(ByteLevelCharacter(text->text[i]), i);
    *text = rewriter.Take();
    return absl::OkStatus();
  }
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<NormalizerPtr> steps) : steps_(std::move(steps)) {}
  absl::Status Apply(AlignedText* text) const override {
    const size_t bytes = text->text.size();
    for (const NormalizerPtr& step : steps_) {
      QT_RETURN_IF_ERROR(step->Apply(text));
      QT_RETURN_IF_ERROR(CheckGrowth(bytes, text->text.size()));
    }
    return absl::OkStatus();
  }

 private:
  std::vector<NormalizerPtr> steps_;
};

}  // namespace

absl::Status CheckGrowth(size_t input_bytes, size_t output_bytes) {
  if (output_bytes <= input_bytes + kMaxAddedBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "tokenizer normalizer: expected to lengthen a text of ", input_bytes, " bytes by at most ",
      kMaxAddedBytes, " bytes, got at least ", output_bytes, " bytes in total"));
}

NormalizerPtr MakePrecompiled(Charsmap charsmap) {
  return std::make_unique<PrecompiledNormalizer>(std::move(charsmap));
}
NormalizerPtr MakeLowercase() { return std::make_unique<LowercaseNormalizer>(); }
NormalizerPtr MakeStrip(bool left, bool right) {
  return std::make_unique<StripNormalizer>(left, right);
}
NormalizerPtr MakeStripAccents() { return std::make_unique<StripAccentsNormalizer>(); }
NormalizerPtr MakeNmt() { return std::make_unique<NmtNormalizer>(); }
NormalizerPtr MakeReplace(Pattern pattern, std::string content) {
  return std::make_unique<ReplaceNormalizer>(std::move(pattern), std::move(content));
}
NormalizerPtr MakePrepend(std::string prefix) {
  return std::make_unique<PrependNormalizer>(std::move(prefix));
}
NormalizerPtr MakeByteLevelNormalizer() { return std::make_unique<ByteLevelNormalizer>(); }
NormalizerPtr MakeNormalizerSequence(std::vector<NormalizerPtr> steps) {
  return std::make_unique<NormalizerSequence>(std::move(steps));
}

}  // namespace quintet
