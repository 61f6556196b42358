// One line in, one line out: text or JSON.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request.h"
#include "nlohmann/json.hpp"
#include "tools/session.h"

namespace quintet {

constexpr size_t kMaxTextBytes = 1 << 20;  // of one input

// Flags that all line commands share.
struct LineFlags {
  std::string input = "text", output = "text";
  bool add_special_tokens = true, truncate = false;
};
void AddLineFlags(CLI::App* command, LineFlags* flags, const std::vector<std::string>& outputs);

// What a command on lines asks of its session. JSON lines may hold token ids alone, so that models
// without a tokenizer serve too.
SessionNeeds NeedsOf(RequestKind kind, const ModelFlags& model, const LineFlags& lines);

// FAILED_PRECONDITION when there is no tokenizer for `text`.
absl::StatusOr<std::vector<int32_t>> EncodeText(const Session& session, absl::string_view text,
                                                bool add_special_tokens);

// One line of input as text or as JSON: {"text": "..."} or {"token_ids": [...]}, with more fields
// for some commands.
struct LineInput {
  std::string text;          // empty with token ids
  std::vector<int32_t> ids;  // fitted, specials included
  nlohmann::json fields;     // the JSON object; null for text
};
absl::StatusOr<LineInput> ReadInput(const Session& session, const LineFlags& flags,
                                    const std::string& line);
// Ids in a JSON array; INVALID_ARGUMENT names `field`.
absl::StatusOr<std::vector<int32_t>> IdsFromJson(const nlohmann::json& value,
                                                 const std::string& field);

// {"line":3,"error":{"code":"INVALID_ARGUMENT","message":"..."}} and a newline.
std::string JsonError(int64_t number, const absl::Status& error);
// What stands for a failed line: such an object, or where the output is text an empty line.
std::function<std::string(int64_t number, const absl::Status& error)> ErrorFormat(
    const LineFlags& flags);
// One compact line; bytes that are not UTF-8 become U+FFFD.
std::string JsonLine(const nlohmann::ordered_json& value);
// A float as the shortest decimal that reads back as the same float: 0.1, not 0.10000000149011612.
nlohmann::ordered_json JsonFloat(float value);
nlohmann::ordered_json JsonLogProb(const TokenLogProb& token);

// Newline, carriage return, tab and backslash as \n, \r, \t and \\, so that an output stays one
// field of one line.
std::string EscapeLine(const std::string& text);

}  // namespace quintet
