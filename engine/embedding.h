// Embedding options of a client, combined with the sentence-transformers modules of the model.
// Every front end makes its encode requests with this class.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request.h"
#include "models/config/sentence_modules.h"
#include "models/tokenizers/tokenizer.h"

namespace quintet {

// Options as a client sets them.
struct EmbeddingOptions {
  // Replaces the Pooling module, or the mean of a model without modules. kNone gives the hidden
  // states themselves, without the modules after the pooling.
  Pooling pooling = Pooling::kModules;
  bool normalize = false;  // scale the result to unit length, after all modules
  // Text before every text input: itself, or the name of one in the model's prompts. Both unset:
  // the model's default prompt. An empty prompt is none.
  std::optional<std::string> prompt, prompt_name;
};

// Immutable, thread safe.
class Embedding {
 public:
  // `modules` may be null. `modules` and `tokenizer` (null: inputs are token ids) outlive the
  // requests. INVALID_ARGUMENT: both prompts are set, a prompt's name is unknown, or the pooling
  // has another width than the modules after it expect; the message begins with the field's name.
  static absl::StatusOr<Embedding> Create(const EmbeddingOptions& options,
                                          const ModelConfig& config, const SentenceModules* modules,
                                          const Tokenizer* tokenizer);

  // The text to tokenize for an input text, and the limit to which its ids are truncated: an
  // end-of-sequence id at the end stays there.
  const std::string& prompt() const { return prompt_; }
  void Truncate(const Tokenizer* tokenizer, std::vector<int32_t>* ids) const;
  // INVALID_ARGUMENT if a prompt was asked for, which an input of token ids cannot have.
  absl::Status CheckTokenIds() const;

  // Sets the kind and the pooling of `request`, whose input is already set. `from_text`: the input
  // is the tokenized prompt and text.
  void Fill(bool from_text, Request* request) const;
  // Values of each row of the result.
  int64_t columns() const { return columns_; }

 private:
  EmbeddingOptions options_;
  const SentenceModules* modules_ = nullptr;
  std::string prompt_;
  int64_t prompt_tokens_ = 0;  // that pooling leaves out
  int64_t columns_ = 0;
};

}  // namespace quintet
