// Templates of a model for requests that are not plain text: chat messages and pairs of a query and
// a document. They are settings of the sections [models.NAME] (tools/FLAGS.md). Stateless.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace quintet {

struct TextTemplates {
  // The input of a chat is chat_message for each message, with {role} and {content} replaced, and
  // then chat_end. If chat_message is empty, the model takes no chats.
  std::string chat_message, chat_end;
  // Reranking: the input made of {query} and {document}. Empty: the model cannot rerank.
  std::string rerank;
  // The score of a pair: probability of the target rerank_true against rerank_false (monoT5).
  std::string rerank_true, rerank_false;
  // If set, the score of a pair is the mean log-likelihood of this text, with {query} and
  // {document} replaced.
  std::string rerank_target;
};

// Names (also in errors) of the settings for the members of TextTemplates, in the same order.
inline constexpr const char* kTemplateSettings[] = {
    "chat-message", "chat-end", "rerank", "rerank-true", "rerank-false", "rerank-target"};
// Returns the member of *templates that the setting `name` sets, or null if there is no such
// setting.
std::string* TemplateSetting(absl::string_view name, TextTemplates* templates);

// Returns INVALID_ARGUMENT if a template lacks a required placeholder, or if a setting lacks
// another one that it needs: chat-end needs chat-message; rerank needs either rerank-true and
// rerank-false, or rerank-target; each of these three needs rerank.
absl::Status CheckTemplates(const TextTemplates& templates);

// Returns `text` with each {name} replaced by its value. A {name} within a value is not replaced.
std::string FillTemplate(
    absl::string_view text,
    const std::vector<std::pair<absl::string_view, absl::string_view>>& values);

}  // namespace quintet
