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
// Converts a sequence of inputs. A single text, or a single list of token ids, gives one input.
std::vector<Input> ReadInputs(nb::handle value, const std::string& where);
// Whether the value is one input, not a sequence of inputs.
bool IsOneInput(nb::handle value);

// Converts `options`, the arguments of generate or stream by name, to a DecodingRequest. An option
// whose value is None stays unset. The names must be among GenerationOptionNames.
DecodingRequest ReadDecoding(const nb::dict& options, const Session& session);
std::vector<std::string> GenerationOptionNames();

// Sets *to to the value of the option `name`, if the dict contains that option.
template <typename T>
void Set(const nb::dict& options, const char* name, T* to) {
  if (options.contains(name)) *to = nb::cast<T>(nb::object(options[name]));
}
// Converts the options of encode; those that are absent keep their defaults.
EmbeddingOptions ReadEmbeddingOptions(const nb::dict& options);

// ReadAdapters returns the LoRA adapters in the option `adapters` of a model. AdapterOf returns the
// adapter that the option `adapter` of a call names, or null if the option is not set; it raises
// NotFoundError if the session has no such adapter.
std::vector<AdapterSource> ReadAdapters(const nb::dict& options);
AdapterHandle AdapterOf(const nb::dict& options, const Session& session);
// Returns the number of adapter slots (AdapterSlots) of a model that is loaded with `count`
// adapters: 0 if count is 0, otherwise at least 8. The spare slots are for adapters that are added
// to the session after loading (ReadAdapter); one batch can then use them together with the others.
int64_t AdapterSlotsFor(size_t count);
// Reads an adapter and puts it into session->adapters. Does not need the GIL.
absl::Status ReadAdapter(Session* session, const AdapterSource& source);
// Returns the names that the options `adapter` and `prompt_name` of calls may have.
std::vector<std::string> AdapterNames(const Session& session);
std::vector<std::string> PromptNames(const Session& session);

// Returns the token ids of an input, after checking their number. `embedding`: for encode, the
// object whose prompt and length limit apply to texts; otherwise null. Does not need the GIL.
absl::StatusOr<std::vector<int32_t>> IdsOf(const Session& session, const Input& input,
                                           bool add_special_tokens, bool truncate,
                                           const Embedding* embedding);

}  // namespace quintet::python
