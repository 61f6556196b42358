#include "server/text_templates.h"

#include <array>
#include <cstddef>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quintet {
namespace {

absl::Status CheckPlaceholder(const char* setting, const std::string& text, const char* wanted) {
  if (text.empty() || absl::StrContains(text, wanted)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(setting, ": must contain ", wanted));
}

}  // namespace

std::string* TemplateSetting(absl::string_view name, TextTemplates* templates) {
  const std::array<std::string*, std::size(kTemplateSettings)> members = {
      &templates->chat_message, &templates->chat_end,     &templates->rerank,
      &templates->rerank_true,  &templates->rerank_false, &templates->rerank_target};
  for (size_t i = 0; i < members.size(); ++i) {
    if (name == kTemplateSettings[i]) return members[i];
  }
  return nullptr;
}

absl::Status CheckTemplates(const TextTemplates& templates) {
  QT_RETURN_IF_ERROR(CheckPlaceholder("chat-message", templates.chat_message, "{content}"));
  QT_RETURN_IF_ERROR(CheckPlaceholder("rerank", templates.rerank, "{document}"));
  if (!templates.chat_end.empty() && templates.chat_message.empty()) {
    return absl::InvalidArgumentError("chat-end: needs chat-message");
  }
  if (templates.rerank_true.empty() != templates.rerank_false.empty()) {
    return absl::InvalidArgumentError("rerank-true and rerank-false: give both or none");
  }
  const bool tokens = !templates.rerank_true.empty(), target = !templates.rerank_target.empty();
  if (templates.rerank.empty() && (tokens || target)) {
    return absl::InvalidArgumentError("rerank-true, rerank-false, rerank-target: need rerank");
  }
  if (!templates.rerank.empty() && tokens == target) {
    return absl::InvalidArgumentError(
        "rerank: needs either rerank-true and rerank-false, or rerank-target");
  }
  if (tokens && !absl::StrContains(templates.rerank, "{query}")) {
    return absl::InvalidArgumentError("rerank: must contain {query}");
  }
  if (target && !absl::StrContains(templates.rerank, "{query}") &&
      !absl::StrContains(templates.rerank_target, "{query}")) {
    return absl::InvalidArgumentError("rerank or rerank-target: must contain {query}");
  }
  return absl::OkStatus();
}

std::string FillTemplate(
    absl::string_view text,
    const std::vector<std::pair<absl::string_view, absl::string_view>>& values) {
  std::string filled;
  while (!text.empty()) {
    const size_t brace = text.find('{');
    absl::StrAppend(&filled, text.substr(0, brace));
    if (brace == absl::string_view::npos) break;
    text.remove_prefix(brace);
    const size_t end = text.find('}');
    bool found = false;
    for (const auto& [name, value] : values) {
      if (end == absl::string_view::npos || text.substr(1, end - 1) != name) continue;
      absl::StrAppend(&filled, value);
      found = true;
    }
    absl::StrAppend(&filled, found ? "" : "{");
    text.remove_prefix(found ? end + 1 : 1);
  }
  return filled;
}

}  // namespace quintet
