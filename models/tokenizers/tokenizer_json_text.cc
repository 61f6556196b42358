// Reads the normalizers, pre-tokenizers and decoders of tokenizer.json.
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/tokenizers/base64.h"
#include "models/tokenizers/byte_level.h"
#include "models/tokenizers/fields.h"
#include "models/tokenizers/tokenizer_json.h"
#include "models/tokenizers/unicode.h"

namespace quintet {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxSteps = 64;

absl::Status UnsupportedType(const std::string& where, const std::string& type) {
  return absl::UnimplementedError(
      absl::StrCat(where, ": type ", type.substr(0, 64), " is not supported"));
}

// Parses the steps of a "Sequence" of normalizers, pre-tokenizers or decoders: calls `parse` for
// each element of the array `field`. Sequences may be nested; the JSON reader's limit on the
// nesting depth bounds the recursion.
template <typename Ptr, typename Parse>
absl::StatusOr<std::vector<Ptr>> ParseSteps(const Json& json, const char* field,
                                            const std::string& where, Parse parse) {
  const Json* list = FindField(json, field);
  if (list == nullptr || !list->is_array() || list->size() > kMaxSteps) {
    return ExpectedField(where, field, absl::StrCat("a list of at most ", kMaxSteps),
                         list == nullptr ? Json() : *list);
  }
  std::vector<Ptr> steps;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string place = absl::StrCat(where, ": ", field, "[", i, "]");
    if (!(*list)[i].is_object()) return ExpectedField(place, "step", "an object", (*list)[i]);
    QT_ASSIGN_OR_RETURN(Ptr step, parse((*list)[i], place));
    steps.push_back(std::move(step));
  }
  return steps;
}

absl::StatusOr<SplitBehavior> BehaviorField(const Json& json, const char* fallback,
                                            const std::string& where) {
  static constexpr std::pair<const char*, SplitBehavior> kNames[] = {
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  QT_ASSIGN_OR_RETURN(const std::string name, StringField(json, "behavior", fallback, where));
  for (const auto& [known, behavior] : kNames) {
    if (name == known) return behavior;
  }
  return ExpectedField(where, "behavior",
                       "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous", name);
}

// Fields of a Metaspace step. Old files have add_prefix_space instead of prepend_scheme.
struct MetaspaceFields {
  std::string replacement;
  PrependScheme scheme;
};
absl::StatusOr<MetaspaceFields> ParseMetaspace(const Json& json, const std::string& where) {
  MetaspaceFields fields;
  QT_ASSIGN_OR_RETURN(fields.replacement, StringField(json, "replacement", where));
  if (Utf8Length(fields.replacement) != static_cast<int>(fields.replacement.size()) ||
      fields.replacement.empty()) {
    return ExpectedField(where, "replacement", "one character", fields.replacement);
  }
  QT_ASSIGN_OR_RETURN(const bool add_prefix_space,
                      BoolField(json, "add_prefix_space", true, where));
  QT_ASSIGN_OR_RETURN(
      const std::string scheme,
      StringField(json, "prepend_scheme", add_prefix_space ? "always" : "never", where));
  if (scheme == "always") {
    fields.scheme = PrependScheme::kAlways;
  } else if (scheme == "first") {
    fields.scheme = PrependScheme::kFirst;
  } else if (scheme == "never") {
    fields.scheme = PrependScheme::kNever;
  } else {
    return ExpectedField(where, "prepend_scheme", "always, first or never", scheme);
  }
  return fields;
}

absl::StatusOr<NormalizerPtr> ParsePrecompiled(const Json& json, const std::string& where) {
  QT_ASSIGN_OR_RETURN(const std::string text, StringField(json, "precompiled_charsmap", "", where));
  const std::optional<std::string> blob = DecodeBase64(text);
  if (!blob) return ExpectedField(where, "precompiled_charsmap", "base64", text.substr(0, 16));
  QT_ASSIGN_OR_RETURN(Charsmap charsmap, Charsmap::Parse(*blob, where));
  return MakePrecompiled(std::move(charsmap));
}

}  // namespace

absl::StatusOr<Pattern> ParsePattern(const Json& object, const std::string& where) {
  const Json* pattern = FindField(object, "pattern");
  if (pattern != nullptr && pattern->is_object() && pattern->size() == 1) {
    if (FindField(*pattern, "String") != nullptr) {
      QT_ASSIGN_OR_RETURN(const std::string text, StringField(*pattern, "String", where));
      return Pattern::Literal(text);
    }
    if (FindField(*pattern, "Regex") != nullptr) {
      QT_ASSIGN_OR_RETURN(const std::string regex, StringField(*pattern, "Regex", where));
      return Pattern::Compile(regex, where);
    }
  }
  return ExpectedField(where, "pattern", "{\"String\": ..} or {\"Regex\": ..}",
                       pattern == nullptr ? Json() : *pattern);
}

absl::StatusOr<NormalizerPtr> ParseNormalizer(const Json& json, const std::string& where) {
  if (json.is_null()) return NormalizerPtr();
  QT_ASSIGN_OR_RETURN(const std::string type, StringField(json, "type", where));
  if (type == "NFC") return MakeUnicodeForm(UnicodeForm::kNfc);
  if (type == "NFD") return MakeUnicodeForm(UnicodeForm::kNfd);
  if (type == "NFKC") return MakeUnicodeForm(UnicodeForm::kNfkc);
  if (type == "NFKD") return MakeUnicodeForm(UnicodeForm::kNfkd);
  if (type == "Precompiled") return ParsePrecompiled(json, where);
  if (type == "Lowercase") return MakeLowercase();
  if (type == "StripAccents") return MakeStripAccents();
  if (type == "Nmt") return MakeNmt();
  if (type == "ByteLevel") return MakeByteLevelNormalizer();
  if (type == "Strip") {
    QT_ASSIGN_OR_RETURN(const bool left, BoolField(json, "strip_left", true, where));
    QT_ASSIGN_OR_RETURN(const bool right, BoolField(json, "strip_right", true, where));
    return MakeStrip(left, right);
  }
  if (type == "Replace") {
    QT_ASSIGN_OR_RETURN(Pattern pattern, ParsePattern(json, where));
    QT_ASSIGN_OR_RETURN(std::string content, StringField(json, "content", where));
    return MakeReplace(std::move(pattern), std::move(content));
  }
  if (type == "Prepend") {
    QT_ASSIGN_OR_RETURN(std::string prefix, StringField(json, "prepend", where));
    return MakePrepend(std::move(prefix));
  }
  if (type == "Sequence") {
    QT_ASSIGN_OR_RETURN(std::vector<NormalizerPtr> steps,
                        ParseSteps<NormalizerPtr>(json, "normalizers", where, ParseNormalizer));
    return MakeNormalizerSequence(std::move(steps));
  }
  return UnsupportedType(where, type);
}

absl::StatusOr<PreTokenizerPtr> ParsePreTokenizer(const Json& json, const std::string& where) {
  if (json.is_null()) return PreTokenizerPtr();
  QT_ASSIGN_OR_RETURN(const std::string type, StringField(json, "type", where));
  if (type == "Metaspace") {
    QT_ASSIGN_OR_RETURN(MetaspaceFields fields, ParseMetaspace(json, where));
    QT_ASSIGN_OR_RETURN(const bool split, BoolField(json, "split", true, where));
    return MakeMetaspace(std::move(fields.replacement), fields.scheme, split);
  }
  if (type == "ByteLevel") {
    QT_ASSIGN_OR_RETURN(const bool add_prefix_space,
                        BoolField(json, "add_prefix_space", true, where));
    QT_ASSIGN_OR_RETURN(const bool use_regex, BoolField(json, "use_regex", true, where));
    if (!use_regex) return MakeByteLevel(add_prefix_space, nullptr);
    QT_ASSIGN_OR_RETURN(Pattern pattern, Pattern::Compile(kGpt2Pattern, where));
    return MakeByteLevel(add_prefix_space, std::make_unique<const Pattern>(std::move(pattern)));
  }
  if (type == "WhitespaceSplit") return MakeWhitespaceSplit();
  if (type == "Whitespace") {
    QT_ASSIGN_OR_RETURN(Pattern pattern, Pattern::Compile(R"(\w+|[^\w\s]+)", where));
    return MakeSplit(std::move(pattern), SplitBehavior::kRemoved, true);
  }
  if (type == "Split") {
    QT_ASSIGN_OR_RETURN(Pattern pattern, ParsePattern(json, where));
    QT_ASSIGN_OR_RETURN(const SplitBehavior behavior, BehaviorField(json, "", where));
    QT_ASSIGN_OR_RETURN(const bool invert, BoolField(json, "invert", false, where));
    return MakeSplit(std::move(pattern), behavior, invert);
  }
  if (type == "Punctuation") {
    QT_ASSIGN_OR_RETURN(const SplitBehavior behavior, BehaviorField(json, "Isolated", where));
    return MakePunctuation(behavior);
  }
  if (type == "Digits") {
    QT_ASSIGN_OR_RETURN(const bool individual, BoolField(json, "individual_digits", false, where));
    return MakeDigits(individual);
  }
  if (type == "Sequence") {
    QT_ASSIGN_OR_RETURN(
        std::vector<PreTokenizerPtr> steps,
        ParseSteps<PreTokenizerPtr>(json, "pretokenizers", where, ParsePreTokenizer));
    return MakePreTokenizerSequence(std::move(steps));
  }
  return UnsupportedType(where, type);
}

absl::StatusOr<DecoderPtr> ParseDecoder(const Json& json, const std::string& where) {
  if (json.is_null()) return DecoderPtr();
  QT_ASSIGN_OR_RETURN(const std::string type, StringField(json, "type", where));
  if (type == "ByteLevel") return MakeByteLevelDecoder();
  if (type == "ByteFallback") return MakeByteFallbackDecoder();
  if (type == "Fuse") return MakeFuseDecoder();
  if (type == "Metaspace") {
    QT_ASSIGN_OR_RETURN(MetaspaceFields fields, ParseMetaspace(json, where));
    return MakeMetaspaceDecoder(std::move(fields.replacement),
                                fields.scheme != PrependScheme::kNever);
  }
  if (type == "Replace") {
    QT_ASSIGN_OR_RETURN(Pattern pattern, ParsePattern(json, where));
    QT_ASSIGN_OR_RETURN(std::string content, StringField(json, "content", where));
    return MakeReplaceDecoder(std::move(pattern), std::move(content));
  }
  if (type == "Strip") {
    QT_ASSIGN_OR_RETURN(std::string content, StringField(json, "content", where));
    QT_ASSIGN_OR_RETURN(const int64_t start, IntField(json, "start", where));
    QT_ASSIGN_OR_RETURN(const int64_t stop, IntField(json, "stop", where));
    if (content.empty() || Utf8Length(content) != static_cast<int>(content.size()) || start < 0 ||
        stop < 0) {
      return ExpectedField(where, "Strip", "one character and counts >= 0", json);
    }
    return MakeStripDecoder(std::move(content), static_cast<size_t>(start),
                            static_cast<size_t>(stop));
  }
  if (type == "BPEDecoder") {
    QT_ASSIGN_OR_RETURN(std::string suffix, StringField(json, "suffix", "</w>", where));
    return MakeBpeDecoder(std::move(suffix));
  }
  if (type == "Sequence") {
    QT_ASSIGN_OR_RETURN(std::vector<DecoderPtr> steps,
                        ParseSteps<DecoderPtr>(json, "decoders", where, ParseDecoder));
    return MakeDecoderSequence(std::move(steps));
  }
  return UnsupportedType(where, type);
}

}  // namespace quintet
