#include "engine/embedding.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/safetensors.h"

namespace quintet {
namespace {

absl::StatusOr<std::string> PromptOf(const EmbeddingOptions& options,
                                     const SentenceModules* modules) {
  if (options.prompt && options.prompt_name) {
    return absl::InvalidArgumentError("prompt: cannot be combined with prompt_name");
  }
  if (options.prompt) return *options.prompt;
  const std::string name =
      options.prompt_name.value_or(modules == nullptr ? "" : modules->default_prompt);
  if (name.empty()) return "";
  if (modules == nullptr) {
    return absl::InvalidArgumentError(
        "prompt_name: the model has no prompts (modules.json, config_sentence_transformers.json); "
        "use prompt");
  }
  const auto found = modules->prompts.find(name);
  if (found != modules->prompts.end()) return found->second;
  const std::string known = absl::StrJoin(
      modules->prompts, ", ",
      [](std::string* out, const auto& prompt) { absl::StrAppend(out, Printable(prompt.first)); });
  return absl::InvalidArgumentError(
      absl::StrCat("prompt_name: expected one of ", known, ", got ", Printable(name)));
}

// `prompt` is the text that sentence-transformers puts before every input. Returns the number of
// the prompt's tokens that pooling leaves out: all, except a special token at the prompt's end.
absl::StatusOr<int64_t> PromptTokens(const std::string& prompt, const Tokenizer& tokenizer) {
  QT_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer.Encode(prompt, true));
  const auto tokens = static_cast<int64_t>(ids.size());
  return ids.empty() || !tokenizer.IsSpecial(ids.back()) ? tokens : tokens - 1;
}

int64_t ColumnsOf(const EmbeddingOptions& options, int64_t d_model,
                  const SentenceModules* modules) {
  if (modules == nullptr || options.pooling == Pooling::kNone) return d_model;
  if (options.pooling == Pooling::kModules || !modules->layers.empty()) return modules->columns;
  return std::min(d_model, modules->columns);  // truncate_dim
}

}  // namespace

absl::StatusOr<Embedding> Embedding::Create(const EmbeddingOptions& options,
                                            const ModelConfig& config,
                                            const SentenceModules* modules,
                                            const Tokenizer* tokenizer, int64_t max_tokens) {
  Embedding embedding;
  embedding.options_ = options;
  embedding.modules_ = modules;
  QT_ASSIGN_OR_RETURN(embedding.prompt_, PromptOf(options, modules));
  const bool replaced = options.pooling != Pooling::kModules && options.pooling != Pooling::kNone;
  if (modules != nullptr && replaced && !modules->layers.empty() &&
      modules->layers[0].in != config.d_model) {
    return absl::InvalidArgumentError(
        absl::StrCat("pooling: the model concatenates ", modules->poolings.size(),
                     " poolings; one pooling does not fit its next module, which expects ",
                     modules->layers[0].in, " values"));
  }
  if (modules != nullptr && !modules->include_prompt && !embedding.prompt_.empty() &&
      tokenizer != nullptr && options.pooling != Pooling::kNone) {
    QT_ASSIGN_OR_RETURN(embedding.prompt_tokens_, PromptTokens(embedding.prompt_, *tokenizer));
  }
  if (options.pad_to == 0 && options.pad_mode != PadMode::kAttend) {
    return absl::InvalidArgumentError("pad_mode: needs pad_to");
  }
  if (options.pad_to != 0) {
    QT_ASSIGN_OR_RETURN(embedding.padding_,
                        InputPadding::Create(options.pad_to, options.pad_mode, max_tokens,
                                             options.pooling, config));
  }
  embedding.columns_ = ColumnsOf(options, config.d_model, modules);
  return embedding;
}

void Embedding::Truncate(const Tokenizer* tokenizer, std::vector<int32_t>* ids) const {
  const size_t most = modules_ == nullptr ? 0 : static_cast<size_t>(modules_->max_tokens);
  if (most == 0 || ids->size() <= most) return;
  const int32_t last = ids->back();
  ids->resize(most);
  if (tokenizer != nullptr && last == tokenizer->eos_id()) ids->back() = last;
}

absl::Status Embedding::CheckTokenIds() const {
  const bool asked = (options_.prompt || options_.prompt_name) && !prompt_.empty();
  if (!asked) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(options_.prompt ? "prompt" : "prompt_name",
                   ": needs inputs that are text; add its tokens to the token ids instead"));
}

void Embedding::Fill(bool from_text, Request* request) const {
  request->kind = RequestKind::kEncode;
  request->pooling = options_.pooling;
  request->normalize = options_.normalize;
  request->modules = modules_;
  request->prompt_tokens = from_text ? prompt_tokens_ : 0;
  padding_.Apply(&request->input);
  request->result_rows = padding_.result_rows();
}

}  // namespace quintet
