// Token counts of responses, as JSON.
#pragma once

#include "quintet/v1/inference.pb.h"
#include "server/json_value.h"

namespace quintet {

// The "usage" object of OpenAI for a response without generated tokens.
inline JsonValue UsageOf(const v1::CallInfo& info) {
  const uint32_t tokens = info.usage().input_tokens();
  return {{"prompt_tokens", tokens}, {"total_tokens", tokens}};
}

}  // namespace quintet
