// Class Embedding: the embedding options of a client, resolved for one model with its
// sentence-transformers modules. The command line, the server and Python use it to make encode
// requests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/padding.h"
#include "engine/request.h"
#include "models/config/sentence_modules.h"
#include "models/tokenizers/tokenizer.h"

namespace quintet {

// Options of an embedding request, as the client sets them.
struct EmbeddingOptions {
  // kModules selects the pooling of the model's sentence-transformers modules, or the mean if it
  // has none. Any other value replaces that pooling. With kNone the result is the hidden states,
  // and no module after the pooling is applied.
  Pooling pooling = Pooling::kModules;
  bool normalize = false;  // scale the result to unit length, after all modules
  // The prompt is put before every text input. prompt: its text. prompt_name: its name among the
  // model's prompts. At most one is set; if neither is, the model's default prompt is used. With an
  // empty text, nothing is put before the inputs.
  std::optional<std::string> prompt, prompt_name;
  // Number of tokens to which inputs are padded or truncated; 0: neither. Needs Pooling::kNone.
  int64_t pad_to = 0;
  PadMode pad_mode = PadMode::kAttend;
};

// Immutable, thread safe.
class Embedding {
 public:
  // `modules`: the model's sentence-transformers modules; null if it has none. `tokenizer`: null if
  // all inputs are token ids. Both must outlive the requests. `max_tokens`: the maximum number of
  // tokens of an input. Returns INVALID_ARGUMENT if prompt and prompt_name are both set, the name
  // is unknown, the chosen pooling returns another number of values per row than the next module
  // expects, the model or the pooling do not allow pad_to (InputPadding::Create), or pad_mode is
  // kZero without pad_to; the message begins with the field's name.
  static absl::StatusOr<Embedding> Create(const EmbeddingOptions& options,
                                          const ModelConfig& config, const SentenceModules* modules,
                                          const Tokenizer* tokenizer, int64_t max_tokens);

  // prompt() returns the text that the caller puts before every input text. Truncate() shortens
  // `ids`, the tokens of the prompt and a text together, to the maximum number of tokens that the
  // model's sentence-transformers modules set; an end-of-sequence id at the end is kept.
  const std::string& prompt() const { return prompt_; }
  void Truncate(const Tokenizer* tokenizer, std::vector<int32_t>* ids) const;
  // Whether pad_to truncates inputs, so that none is too long.
  bool truncates() const { return padding_.tokens() > 0; }
  // Must be called if the inputs are token ids, which cannot have a prompt. Returns
  // INVALID_ARGUMENT if the options set a prompt.
  absl::Status CheckTokenIds() const;

  // Sets the kind and the pooling of `request`, whose input is already set, and pads this input.
  // `from_text`: true if the input was tokenized from a text that began with prompt(); false if the
  // client gave token ids.
  void Fill(bool from_text, Request* request) const;
  // Number of values in each row of a request's result.
  int64_t columns() const { return columns_; }

 private:
  EmbeddingOptions options_;
  const SentenceModules* modules_ = nullptr;
  InputPadding padding_;
  std::string prompt_;
  int64_t prompt_tokens_ = 0;  // number of prompt tokens that pooling leaves out
  int64_t columns_ = 0;
};

}  // namespace quintet
