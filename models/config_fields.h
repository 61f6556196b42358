// Checked reading of one JSON object's fields. The first thing wrong is kept; later reads return
// their defaults, so a parser asks status() once, at its end. null counts as absent.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace quintet {

class ConfigFields {
 public:
  // `object` is an object and outlives this; `where` starts every message.
  ConfigFields(const nlohmann::json& object, std::string where);

  const absl::Status& status() const { return status_; }
  // Keeps `status` unless something was wrong before.
  void Fail(absl::Status status);
  // INVALID_ARGUMENT "where: field: what".
  void Invalid(const std::string& field, const std::string& what);

  // The value of a field that is present and not null, else null.
  const nlohmann::json* Find(const std::string& field) const;

  // An integer in [least, most]; 4.0 is not one.
  std::optional<int64_t> Int(const std::string& field, int64_t least, int64_t most);
  // The same under any of several names, which must agree where more than one is present.
  std::optional<int64_t> Int(std::initializer_list<const char*> names, int64_t least, int64_t most);
  // A finite number in [least, most].
  std::optional<double> Number(const std::string& field, double least, double most);
  std::optional<bool> Bool(const std::string& field);
  std::optional<std::string> String(const std::string& field);
  // A token id in [0, vocab), or a list of at most `most_ids` of them; empty when absent.
  std::vector<int32_t> TokenIds(const std::string& field, int64_t vocab, size_t most_ids);

 private:
  const nlohmann::json& object_;
  std::string where_;
  absl::Status status_;
};

}  // namespace quintet
