// Extended grapheme clusters: rules GB1 to GB999 of Unicode Standard Annex 29.
#include "models/tokenizers/unicode.h"

namespace quintet {
namespace {

enum GraphemeBreak : uint8_t {
  kOther,
  kCr,
  kLf,
  kControl,
  kExtend,
  kZwj,
  kRegionalIndicator,
  kPrepend,
  kSpacingMark,
  kL,
  kV,
  kT,
  kLv,
  kLvt,
};
constexpr uint8_t kPictographic = 16;
constexpr uint8_t kConjunctMask = 96, kConsonant = 32, kLinker = 64;

// State of the current grapheme cluster. It decides whether the next code point belongs to the
// cluster.
struct ClusterState {
  uint8_t previous;  // properties of the last code point
  // Number of consecutive regional indicators (characters that form a flag in pairs) at the end of
  // the cluster.
  int regional_indicators = 0;
  bool pictographic_zwj = false;  // the cluster ends in Pictographic Extend* ZWJ
  bool pictographic = false;      // the cluster ends in Pictographic Extend*
  bool consonant = false;         // the cluster ends in Consonant [Extend Linker]*
  bool linker = false;            // ... and that part contains a Linker

  void Add(uint8_t properties) {
    const uint8_t kind = properties & 15, conjunct = properties & kConjunctMask;
    regional_indicators = kind == kRegionalIndicator ? regional_indicators + 1 : 0;
    pictographic_zwj = pictographic && kind == kZwj;
    pictographic = (properties & kPictographic) != 0 || (pictographic && kind == kExtend);
    if (conjunct == kConsonant) {
      consonant = true;
      linker = false;
    } else if (conjunct == kLinker) {
      linker = consonant;
    } else if (conjunct == 0) {
      consonant = linker = false;
    }
    previous = properties;
  }
};

bool BreaksBefore(const ClusterState& state, uint8_t properties) {
  const uint8_t before = state.previous & 15, after = properties & 15;
  if (before == kCr && after == kLf) return false;                        // GB3
  if (before == kCr || before == kLf || before == kControl) return true;  // GB4
  if (after == kCr || after == kLf || after == kControl) return true;     // GB5
  if (before == kL && (after == kL || after == kV || after == kLv || after == kLvt))
    return false;                                                                     // GB6
  if ((before == kLv || before == kV) && (after == kV || after == kT)) return false;  // GB7
  if ((before == kLvt || before == kT) && after == kT) return false;                  // GB8
  if (after == kExtend || after == kZwj || after == kSpacingMark) return false;       // GB9, GB9a
  if (before == kPrepend) return false;                                               // GB9b
  if (state.linker && (properties & kConjunctMask) == kConsonant) return false;       // GB9c
  if (state.pictographic_zwj && (properties & kPictographic) != 0) return false;      // GB11
  if (after == kRegionalIndicator && state.regional_indicators % 2 == 1)
    return false;  // GB12, GB13
  return true;
}

}  // namespace

size_t GraphemeLength(std::string_view text) {
  const uint8_t* table = Unicode().grapheme;
  int length;
  ClusterState state{0};
  state.Add(table[DecodeUtf8(text.data(), &length)]);
  size_t at = static_cast<size_t>(length);
  while (at < text.size()) {
    const uint8_t properties = table[DecodeUtf8(text.data() + at, &length)];
    if (BreaksBefore(state, properties)) break;
    state.Add(properties);
    at += static_cast<size_t>(length);
  }
  return at;
}

}  // namespace quintet
