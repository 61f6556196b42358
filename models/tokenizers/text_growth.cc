#include "models/tokenizers/text_growth.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/tokenizers/charsmap.h"

namespace quintet {
namespace {

using Json = nlohmann::json;

// Of the steps without settings that matter, in UTF-8: the longest compatibility decomposition is
// U+FDFA's (3 bytes to 33), the longest canonical one three times as long as its character.
constexpr std::pair<const char*, double> kFixed[] = {
    {"NFC", 3},       {"NFD", 3},
    {"NFKC", 11},     {"NFKD", 11},
    {"Nmt", 3},       {"Lowercase", 2},
    {"ByteLevel", 4}, {"Precompiled", Charsmap::kMaxReplacementBytes}};

double Bytes(const Json& object, const char* field) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_string()) return 0;
  return static_cast<double>(it->get_ref<const std::string&>().size());
}

// A regular expression may match nothing, between any two characters; a literal its own bytes only.
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
  for (const auto& [name, growth] : kFixed) {
    if (type == name) return growth;
  }
  return 1;
}

absl::Status CheckTextGrowth(double growth, double most, const std::string& where) {
  if (growth <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      where, ": expected steps that make a text at most ", most, " times as long, got ", growth));
}

}  // namespace quintet
