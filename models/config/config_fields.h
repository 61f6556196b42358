// Checked access to the fields of a JSON object. A field with the value null, or with an invalid
// one, reads as absent. The first error is kept in status(), so a parser checks status() once, at
// its end.
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
  // `object` must be a JSON object and outlive this class. Error messages begin with `where`.
  ConfigFields(const nlohmann::json& object, std::string where);

  const absl::Status& status() const { return status_; }
  // Stores `status` unless an error is stored already.
  void Fail(absl::Status status);
  // Stores an INVALID_ARGUMENT error unless an error is stored already. Its message consists of the
  // constructor's `where` and the two arguments: "where: field: what".
  void Invalid(const std::string& field, const std::string& what);

  // Returns the value of a field; a null pointer if the field is absent or null.
  const nlohmann::json* Find(const std::string& field) const;

  // Returns the value of an integer field; an error if it is outside [min_value, max_value]. 4.0 is
  // not an integer.
  std::optional<int64_t> Int(const std::string& field, int64_t min_value, int64_t max_value);
  // Like Int above, for an integer field that has several names. If more than one is present, their
  // values must be equal.
  std::optional<int64_t> Int(std::initializer_list<const char*> names, int64_t min_value,
                             int64_t max_value);
  // Returns the value of a numeric field; an error if it is outside [min_value, max_value] or not
  // finite.
  std::optional<double> Number(const std::string& field, double min_value, double max_value);
  std::optional<bool> Bool(const std::string& field);
  std::optional<std::string> String(const std::string& field);
  // Returns the token ids of a field that contains one id or a list of at most `max_ids` ids, each
  // in [0, vocab); an empty vector if the field is absent.
  std::vector<int32_t> TokenIds(const std::string& field, int64_t vocab, size_t max_ids);

 private:
  const nlohmann::json& object_;
  std::string where_;
  absl::Status status_;
};

}  // namespace quintet
