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
  int change;  // ChangedCharacter's
};

class FormNormalizer : public Normalizer {
 public:
  explicit FormNormalizer(UnicodeForm form)
      : compatibility_(form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd),
        composes_(form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc) {}

  void Apply(AlignedText* text) const override {
    if (std::all_of(text->text.begin(), text->text.end(),
                    [](char c) { return static_cast<uint8_t>(c) < 0x80; }))
      return;
    std::vector<Character> characters = Decompose(text->text);
    Order(&characters);
    if (composes_) Compose(&characters);
    std::vector<ChangedCharacter> changed;
    changed.reserve(characters.size());
    for (const Character& character : characters)
      changed.push_back({character.code_point, character.change});
    *text = Transform(*text, changed);
  }

 private:
  std::vector<Character> Decompose(const std::string& text) const {
    std::vector<Character> characters;
    characters.reserve(text.size());
    bool first = true;
    const auto add = [&](uint32_t code_point) {
      characters.push_back({code_point, Unicode().combining[code_point], first ? 0 : 1});
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
    return characters;
  }

  // Each run of combining characters by ascending class, stably.
  static void Order(std::vector<Character>* characters) {
    const auto is_starter = [](const Character& c) { return c.combining == 0; };
    for (auto it = characters->begin(); it != characters->end();) {
      const auto run = std::find_if_not(it, characters->end(), is_starter);
      it = std::find_if(run, characters->end(), is_starter);
      std::stable_sort(run, it, [](const Character& a, const Character& b) {
        return a.combining < b.combining;
      });
    }
  }

  static void Compose(std::vector<Character>* characters) {
    size_t size = 0;
    size_t starter = SIZE_MAX;  // index in the result
    int last_class = -1;        // of the characters kept after the starter; -1: none
    for (const Character& character : *characters) {
      if (starter != SIZE_MAX && last_class < static_cast<int>(character.combining)) {
        const uint32_t composite =
            Unicode().Compose((*characters)[starter].code_point, character.code_point);
        if (composite != 0) {
          (*characters)[starter].code_point = composite;
          (*characters)[starter].change += character.change - 1;
          continue;
        }
      }
      if (character.combining == 0) {
        starter = size;
        last_class = -1;
      } else {
        last_class = character.combining;
      }
      (*characters)[size++] = character;
    }
    characters->resize(size);
  }

  bool compatibility_, composes_;
};

}  // namespace

NormalizerPtr MakeUnicodeForm(UnicodeForm form) { return std::make_unique<FormNormalizer>(form); }

}  // namespace quintet
