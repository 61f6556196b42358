#include "server/api_chat.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quintet {
namespace {

using nlohmann::json;

constexpr size_t kMaxMessages = 256;

// The member of `value`; null if there is none or `value` is not an object.
const json* Member(const json& value, const char* name) {
  if (!value.is_object()) return nullptr;
  const auto found = value.find(name);
  return found == value.end() ? nullptr : &*found;
}

absl::StatusOr<std::string> ContentOf(const std::string& name, const json& message) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ".content: missing: expected a string"));
  }
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) return ExpectedJson(name + ".content", "a string", *content);
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const json& part = (*content)[i];
    const json* const text_of_part = Member(part, "text");
    const json* const type = Member(part, "type");
    if (type == nullptr || *type != "text" || text_of_part == nullptr ||
        !text_of_part->is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ".content[", i, "]: only parts of type text are supported"));
    }
    text += text_of_part->get_ref<const std::string&>();
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> ChatPrompt(const TextTemplates& templates, JsonFields* fields) {
  if (templates.chat_message.empty()) {
    return absl::FailedPreconditionError(
        "this model takes no chats: set chat-message in its section [models.NAME] of the "
        "configuration file, or use /v1/completions");
  }
  const json* const messages = fields->Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty() ||
      messages->size() > kMaxMessages) {
    return absl::InvalidArgumentError(
        absl::StrCat("messages: expected an array of 1 to ", kMaxMessages, " messages"));
  }
  std::string prompt;
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string name = absl::StrCat("messages[", i, "]");
    const json& message = (*messages)[i];
    if (!message.is_object()) return ExpectedJson(name, "an object", message);
    const json* const role = Member(message, "role");
    if (role == nullptr) return ExpectedJson(name + ".role", "a string", nullptr);
    if (!role->is_string()) return ExpectedJson(name + ".role", "a string", *role);
    QT_ASSIGN_OR_RETURN(const std::string content, ContentOf(name, message));
    prompt += FillTemplate(templates.chat_message,
                           {{"role", role->get_ref<const std::string&>()}, {"content", content}});
  }
  return prompt + templates.chat_end;
}

}  // namespace quintet
