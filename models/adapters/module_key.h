// How the keys of a PEFT configuration name modules (peft 0.19, tuners/tuners_utils.py and
// utils/other.py). A module's name is its path in Hugging Face's model, such as
// decoder.block.0.layer.0.SelfAttention.q.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "models/tokenizers/pattern.h"

namespace quintet {

// Whether `name` is `suffix` or ends with a dot and `suffix`.
bool EndsWithModule(std::string_view name, std::string_view suffix);

// A regular expression that must match a whole module name (Python's re.fullmatch). Matching takes
// linear time (models/tokenizers/pattern.h); syntax that this engine lacks is refused.
class ModuleRegex {
 public:
  // `field` names the expression in messages. INVALID_ARGUMENT: the expression is longer than
  // kMaxBytes or not UTF-8. UNIMPLEMENTED: its syntax is outside the supported subset.
  static absl::StatusOr<ModuleRegex> Compile(const std::string& regex, const std::string& field);
  bool Matches(std::string_view name) const;

  static constexpr size_t kMaxBytes = 1024;

 private:
  explicit ModuleRegex(Pattern pattern) : pattern_(std::move(pattern)) {}
  Pattern pattern_;
};

// A key of rank_pattern or alpha_pattern: a regular expression that matches a module name from its
// start or from after a dot, up to its end. In most files it is a plain name without operators;
// then no expression is compiled.
class ModuleKey {
 public:
  static absl::StatusOr<ModuleKey> Compile(const std::string& key, const std::string& field);
  bool Matches(std::string_view name) const;
  bool plain() const { return !regex_.has_value(); }
  const std::string& text() const { return text_; }

  static constexpr size_t kMaxBytes = 512;

 private:
  std::string text_;
  std::optional<ModuleRegex> regex_;
};

}  // namespace quintet
