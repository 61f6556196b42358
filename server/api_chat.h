// Renders the messages of a chat as one input text, with the chat templates of the model.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/json_fields.h"
#include "server/text_templates.h"

namespace quintet {

// Reads the member "messages": an array of {"role", "content"}, where the content is a text or an
// array of {"type": "text", "text": ...}. FAILED_PRECONDITION: the model has no template for chats.
absl::StatusOr<std::string> ChatPrompt(const TextTemplates& templates, JsonFields* fields);

}  // namespace quintet
