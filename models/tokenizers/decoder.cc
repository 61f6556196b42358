#include "models/tokenizers/decoder.h"

#include <utility>

#include "models/tokenizers/byte_level.h"
#include "models/tokenizers/token_model.h"
#include "models/tokenizers/unicode.h"

namespace quintet {
namespace {

void ReplaceAll(std::string_view from, std::string_view to, std::string* text) {
  std::string replaced;
  size_t kept = 0;
  for (size_t at = text->find(from); at != std::string::npos; at = text->find(from, kept)) {
    replaced.append(*text, kept, at - kept).append(to);
    kept = at + from.size();
  }
  if (kept == 0) return;
  replaced.append(*text, kept);
  *text = std::move(replaced);
}

class ByteLevelDecoder : public Decoder {
 public:
  void Apply(std::vector<std::string>* tokens) const override {
    std::string bytes;
    for (const std::string& token : *tokens) AppendByteLevelBytes(token, &bytes);
    tokens->assign(1, RepairUtf8(bytes, InvalidUtf8::kPart));
  }
};

class MetaspaceDecoder : public Decoder {
 public:
  MetaspaceDecoder(std::string replacement, bool strips_first)
      : replacement_(std::move(replacement)), strips_first_(strips_first) {}
  void Apply(std::vector<std::string>* tokens) const override {
    for (size_t i = 0; i < tokens->size(); ++i) {
      ReplaceAll(replacement_, i == 0 && strips_first_ ? "" : " ", &(*tokens)[i]);
    }
  }

 private:
  std::string replacement_;
  bool strips_first_;
};

class ReplaceDecoder : public Decoder {
 public:
  ReplaceDecoder(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void Apply(std::vector<std::string>* tokens) const override {
    for (std::string& token : *tokens) {
      std::string replaced;
      size_t kept = 0;
      pattern_.ForEachMatch(token, [&](size_t begin, size_t end) {
        replaced.append(token, kept, begin - kept).append(content_);
        kept = end;
      });
      replaced.append(token, kept);
      token = std::move(replaced);
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

// Replaces each run of byte pieces ("<0x0A>") by the text of these bytes, or by one U+FFFD per byte
// if they are not valid UTF-8.
class ByteFallbackDecoder : public Decoder {
 public:
  void Apply(std::vector<std::string>* tokens) const override {
    std::vector<std::string> decoded;
    std::string bytes;
    const auto flush = [&] {
      if (!bytes.empty() && IsUtf8(bytes)) decoded.push_back(bytes);
      if (!bytes.empty() && !IsUtf8(bytes))
        decoded.insert(decoded.end(), bytes.size(), std::string(kReplacement));
      bytes.clear();
    };
    for (std::string& token : *tokens) {
      const int byte = BytePieceValue(token);
      if (byte >= 0) {
        bytes.push_back(static_cast<char>(byte));
        continue;
      }
      flush();
      decoded.push_back(std::move(token));
    }
    flush();
    *tokens = std::move(decoded);
  }
};

class FuseDecoder : public Decoder {
 public:
  void Apply(std::vector<std::string>* tokens) const override {
    std::string text;
    for (const std::string& token : *tokens) text += token;
    tokens->assign(1, std::move(text));
  }
};

class StripDecoder : public Decoder {
 public:
  StripDecoder(std::string content, size_t start, size_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void Apply(std::vector<std::string>* tokens) const override {
    for (std::string& token : *tokens) {
      std::string_view kept = token;
      const size_t size = content_.size();
      for (size_t i = 0; i < start_ && kept.substr(0, size) == content_; ++i)
        kept.remove_prefix(size);
      for (size_t i = 0;
           i < stop_ && kept.size() >= size && kept.substr(kept.size() - size) == content_; ++i) {
        kept.remove_suffix(size);
      }
      token = std::string(kept);
    }
  }

 private:
  std::string content_;
  size_t start_, stop_;
};

class BpeDecoder : public Decoder {
 public:
  explicit BpeDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void Apply(std::vector<std::string>* tokens) const override {
    for (size_t i = 0; i < tokens->size(); ++i) {
      if (!suffix_.empty()) ReplaceAll(suffix_, i + 1 == tokens->size() ? "" : " ", &(*tokens)[i]);
    }
  }

 private:
  std::string suffix_;
};

class DecoderSequence : public Decoder {
 public:
  explicit DecoderSequence(std::vector<DecoderPtr> steps) : steps_(std::move(steps)) {}
  void Apply(std::vector<std::string>* tokens) const override {
    for (const DecoderPtr& step : steps_) step->Apply(tokens);
  }

 private:
  std::vector<DecoderPtr> steps_;
};

}  // namespace

DecoderPtr MakeByteLevelDecoder() { return std::make_unique<ByteLevelDecoder>(); }
DecoderPtr MakeMetaspaceDecoder(std::string replacement, bool strips_first) {
  return std::make_unique<MetaspaceDecoder>(std::move(replacement), strips_first);
}
DecoderPtr MakeReplaceDecoder(Pattern pattern, std::string content) {
  return std::make_unique<ReplaceDecoder>(std::move(pattern), std::move(content));
}
DecoderPtr MakeByteFallbackDecoder() { return std::make_unique<ByteFallbackDecoder>(); }
DecoderPtr MakeFuseDecoder() { return std::make_unique<FuseDecoder>(); }
DecoderPtr MakeStripDecoder(std::string content, size_t start, size_t stop) {
  return std::make_unique<StripDecoder>(std::move(content), start, stop);
}
DecoderPtr MakeBpeDecoder(std::string suffix) {
  return std::make_unique<BpeDecoder>(std::move(suffix));
}
DecoderPtr MakeDecoderSequence(std::vector<DecoderPtr> steps) {
  return std::make_unique<DecoderSequence>(std::move(steps));
}

void CleanUpSpaces(std::string* text) {
  static constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
      {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) ReplaceAll(from, to, text);
}

}  // namespace quintet
