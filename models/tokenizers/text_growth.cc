#include "models/tokenizers/text_growth.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/tokenizers/charsmap.h"

namespace quintet {
namespace {

using Json = nlohmann::json;

// Upper bound of the growth (output bytes per input byte, in UTF-8) of steps whose growth does not
// depend on their settings. NFKC and NFKD: the compatibility decomposition that grows most is that
// of U+FDFA, from 3 bytes to 33. NFC and NFD: a canonical decomposition has at most three times the
// bytes of its character.
constexpr std::pair<const char*, double> kFixedGrowth[] = {
    {"NFC", 3},       {"NFD", 3},
    {"NFKC", 11},     {"NFKD", 11},
    {"Nmt", 3},       {"Lowercase", 2},
    {"ByteLevel", 4}, {"Precompiled", Charsmap::kMaxReplacementBytes}};

double Bytes(const Json& object, const char* field) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_string()) return 0;
  return static_cast<double>(it->get_ref<const std::string&>().size());
}

// Upper bound of the growth (output bytes per input byte) of a Replace step. A literal pattern is
// replaced by `content`, so the growth is bytes of `content` / bytes of the pattern, at least 1. A
// regular expression may match the empty string between any two characters; `content` is then
// inserted before each, and the growth is up to 1 + bytes of `content`.
double ReplaceGrowth(const Json& step) {
  const double content = Bytes(step, "content"), literal = Bytes(step.at("pattern"), "String");
  return literal > 0 ? std::max(1.0, content / literal) : 1 + content;
}

}  // namespace

double TextGrowth(const Json& step) {
  if (step.is_null()) return 1;
  const std::string& type = step.at("type").get_ref<const std::string&>();
  if (type == "Replace") return ReplaceGrowth(step);
  if (type == "Prepend") return 1 + Bytes(step, "prepend");
  if (type == "Metaspace") return 2 * Bytes(step, "replacement");
  if (type == "Sequence") {
    double growth = 1;
    for (const char* field : {"normalizers", "pretokenizers", "decoders"}) {
      const auto steps = step.find(field);
      if (steps == step.end() || !steps->is_array()) continue;
      for (const Json& one : *steps) growth *= TextGrowth(one);
    }
    return growth;
  }
  for (const auto& [name, growth] : kFixedGrowth) {
    if (type == name) return growth;
  }
  return 1;
}

absl::Status CheckTextGrowth(double growth, double limit, const std::string& where) {
  if (growth <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": expected a text growth of at most ", limit, " times, got ", growth));
}

}  // namespace quintet
