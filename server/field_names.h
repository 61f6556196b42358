// Names of fields in error messages. The validator names the fields of quintet.v1; a protocol in
// which fields have other names replaces these names.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace quintet {

// Field paths of quintet.v1 and their names in another protocol: {"decoding.num_beams", "best_of"}.
// A path that ends with '.' or '[' stands for all paths that begin with it.
using FieldRenames = std::vector<std::pair<std::string, std::string>>;

// Returns the field of an error message of the form "field: text", or "".
absl::string_view FieldOf(absl::string_view message);

// Renames the field of an error message. Takes the first {path, name} of `names` whose path is the
// whole field path or a part at its start that ends at a '.' or '[', and replaces this part by the
// name. Then removes .text and .token_ids.ids, because inputs of other protocols are texts or
// arrays: {"inputs", "prompt"} turns "inputs[3].token_ids.ids[7]" into "prompt[3][7]". Returns
// other messages unchanged.
std::string RenamedField(absl::string_view message, const FieldRenames& names);
// Does the same with the message of `status`.
absl::Status RenamedField(const absl::Status& status, const FieldRenames& names);

}  // namespace quintet
