// Reads Python values: texts, token ids and decoding options. Every function needs the GIL, raises
// TypeError for a wrong type and InvalidArgumentError for a wrong value; messages name `where`.
#pragma once

#include <string>
#include <vector>

#include "engine/embedding.h"
#include "engine/options.h"
#include "engine/session.h"
#include "tools/python/extension/errors.h"

namespace quintet::python {

// One input: text, or token ids (a sequence of integers or a one-dimensional integer array).
struct Input {
  bool is_text = false;
  std::string text;
  std::vector<int32_t> ids;
};
Input ReadInput(nb::handle value, const std::string& where);
// The inputs of a sequence; a text or one list of ids is one input.
std::vector<Input> ReadInputs(nb::handle value, const std::string& where);
// Whether the value is one input, not a sequence of inputs.
bool IsOneInput(nb::handle value);

// Options by name, as generate and stream take them. None leaves an option unset. The names must be
// among GenerationOptionNames.
DecodingRequest ReadDecoding(const nb::dict& options, const Session& session);
std::vector<std::string> GenerationOptionNames();

// Token ids of an input, after the checks of length. `embedding`: that of encode, whose prompt and
// limit apply to texts; else null. Needs no GIL.
absl::StatusOr<std::vector<int32_t>> IdsOf(const Session& session, const Input& input,
                                           bool add_special_tokens, bool truncate,
                                           const Embedding* embedding);

}  // namespace quintet::python
