// NFC, NFD, NFKC and NFKD (Unicode Standard Annex 15).
#include <algorithm>
#include <vector>

#include "models/tokenizers/normalizer.h"
#include "models/tokenizers/unicode.h"

namespace quintet {
namespace {

struct Character {
  uint32_t code_point;
  uint8_t combining;
  int change;  // the `change` argument of CharacterRewriter::Put
};

class FormNormalizer : public Normalizer {
 public:
  explicit FormNormalizer(UnicodeForm form)
      : compatibility_(form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd),
        composes_(form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc) {}

  absl::Status Apply(AlignedText* text) const override {
    if (std::all_of(text->text.begin(), text->text.end(),
                    [](char c) { return static_cast<uint8_t>(c) < 0x80; }))
      return absl::OkStatus();
    CharacterRewriter out(*text);
    std::vector<Character> segment;  // a starter and all characters up to the next starter
    const auto release = [&] {
      for (const Character& character : segment) out.Put(character.code_point, character.change);
      segment.clear();
    };
    Decompose(text->text, [&](const Character& character) {
      if (character.combining == 0) {
        Finish(&segment);
        if (composes_ && JoinsStarter(character, &segment)) return;
        release();
      }
      segment.push_back(character);
    });
    Finish(&segment);
    release();
    *text = out.Take();
    return absl::OkStatus();
  }

 private:
  template <typename Add>
  void Decompose(const std::string& text, Add add_character) const {
    bool first = true;
    const auto add = [&](uint32_t code_point) {
      add_character({code_point, Unicode().combining[code_point], first ? 0 : 1});
      first = false;
    };
    for (size_t at = 0; at < text.size();) {
      int length;
      const uint32_t code_point = DecodeUtf8(text.data() + at, &length);
      first = true;
      const uint32_t syllable = code_point - 0xAC00;
      if (syllable < 11172) {
        add(0x1100 + syllable / 588);
        add(0x1161 + syllable % 588 / 28);
        if (syllable % 28 != 0) add(0x11A7 + syllable % 28);
      } else {
        const std::u32string_view mapped =
            compatibility_ ? Unicode().Compatibility(code_point) : Unicode().Canonical(code_point);
        if (mapped.empty()) add(code_point);
        for (const char32_t c : mapped) add(c);
      }
      at += static_cast<size_t>(length);
    }
  }

  // A segment is a starter (a character of combining class 0) and the combining characters after
  // it. Stably sorts the segment's combining characters by ascending combining class; for NFC and
  // NFKC then composes the starter with the characters that can be composed with it.
  void Finish(std::vector<Character>* segment) const {
    if (segment->size() < 2) return;
    const bool has_starter = segment->front().combining == 0;
    std::stable_sort(
        segment->begin() + (has_starter ? 1 : 0), segment->end(),
        [](const Character& a, const Character& b) { return a.combining < b.combining; });
    if (!composes_ || !has_starter) return;
    size_t size = 1;
    for (size_t i = 1; i < segment->size(); ++i) {
      const Character& character = (*segment)[i];
      // The character is blocked from the starter if the previous character, which could not be
      // composed, has the same combining class (or a higher one).
      const bool blocked = size > 1 && (*segment)[size - 1].combining >= character.combining;
      if (!blocked && Join(character, &segment->front())) continue;
      (*segment)[size++] = character;
    }
    segment->resize(size);
  }

  // Composes two adjacent starters (characters of combining class 0) if possible, for example parts
  // of a Hangul syllable; returns whether it did. The first one is the only character of `segment`,
  // the second one is `character`.
  static bool JoinsStarter(const Character& character, std::vector<Character>* segment) {
    return segment->size() == 1 && segment->front().combining == 0 &&
           Join(character, &segment->front());
  }

  static bool Join(const Character& character, Character* starter) {
    const uint32_t composite = Unicode().Compose(starter->code_point, character.code_point);
    if (composite == 0) return false;
    starter->code_point = composite;
    starter->change += character.change - 1;
    return true;
  }

  bool compatibility_, composes_;
};

}  // namespace

NormalizerPtr MakeUnicodeForm(UnicodeForm form) { return std::make_unique<FormNormalizer>(form); }

}  // namespace quintet
