#include "engine/request.h"

#include "absl/strings/str_cat.h"

namespace quintet {

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos:
      return "eos";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kDone:
      return "done";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
  }
  return "?";
}

absl::Status CheckHead(RequestKind kind, const ModelConfig& config) {
  const bool task_head = config.head == Head::kSequenceClassification ||
                         config.head == Head::kTokenClassification ||
                         config.head == Head::kQuestionAnswering;
  const char* needed = nullptr;
  if (kind == RequestKind::kClassify && !task_head)
    needed = "a classification or question answering";
  if (kind == RequestKind::kGenerate || kind == RequestKind::kScore) {
    if (config.head != Head::kLanguageModel || !config.has_decoder()) needed = "a language model";
  }
  if (needed == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the request needs ", needed, " head; the model's is: ", HeadName(config.head)));
}

absl::Status CheckAttentionScope(const Request& request, const ModelConfig& config) {
  if (request.sliding_window < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("sliding_window: ", request.sliding_window, " is negative"));
  }
  if (request.sliding_window > 0 && request.prefix_lm) {
    return absl::InvalidArgumentError(
        "sliding_window: cannot be combined with prefix_lm, whose prompt attends in both "
        "directions");
  }
  if (!config.has_encoder()) return absl::OkStatus();
  if (request.sliding_window > 0) {
    return absl::InvalidArgumentError(
        "sliding_window: only causal models (GPT-2) take one; an encoder-decoder's targets read "
        "the whole input through cross-attention");
  }
  if (request.prefix_lm) {
    return absl::InvalidArgumentError(
        "prefix_lm: only causal models (GPT-2) take it; an encoder reads its input both ways "
        "anyhow");
  }
  return absl::OkStatus();
}

}  // namespace quintet
