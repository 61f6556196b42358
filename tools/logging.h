// The process's log: standard error, through spdlog. It never holds text of prompts or outputs.
#pragma once

#include <string>

namespace quintet {

// format: "text" or "json" (one object a line: time, level, message); level: "debug", "info",
// "warn", "error".
void SetUpLogging(const std::string& format, const std::string& level);

}  // namespace quintet
