// Parsing of input lines and formatting of output lines, as text or JSON.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/embedding.h"
#include "engine/request.h"
#include "nlohmann/json.hpp"
#include "tools/session.h"

namespace quintet {

// Flags shared by the subcommands that process lines (generate, encode, score, classify).
struct LineFlags {
  std::string input = "text", output = "text";
  bool add_special_tokens = true, truncate = false;
  std::string output_file;  // empty: standard output
  bool resume = false, quiet = false;
};
void AddLineFlags(CLI::App* command, LineFlags* flags, const std::vector<std::string>& outputs);

// Returns what a command that processes lines needs of its session. With JSON lines the tokenizer
// is optional, because lines may contain only token ids.
SessionNeeds NeedsOf(RequestKind kind, const LineFlags& lines);

// One parsed line of input. The line is a text or a JSON object: {"text": "..."} or {"token_ids":
// [...]}, with more fields for some commands.
struct LineInput {
  std::string text;          // empty if the line contains token ids
  std::vector<int32_t> ids;  // with special tokens; length checked (TruncateInput)
  nlohmann::json fields;     // the JSON object; null for text lines
};
// A JSON object may have the fields text, token_ids, id, meta and those in `fields`; others are
// INVALID_ARGUMENT. `embedding`, for encode: its prompt comes before a text, which is then
// truncated as it says.
absl::StatusOr<LineInput> ReadInput(const Session& session, const LineFlags& flags,
                                    const std::string& line,
                                    const std::vector<std::string>& fields = {},
                                    const Embedding* embedding = nullptr);
// The fields id and meta of a line of JSON input, as they appear in its output: {"id": 7}. Empty if
// it has none or is not an object. Sets nothing else: ReadInput reports errors.
nlohmann::ordered_json CarriedFields(const std::string& line);
// Appends the fields to the object in `output`, which is a line that JsonLine made.
std::string WithFields(const std::string& output, const nlohmann::ordered_json& fields);
// Reads a JSON array of token ids. INVALID_ARGUMENT names `field`.
absl::StatusOr<std::vector<int32_t>> IdsFromJson(const nlohmann::json& value,
                                                 const std::string& field);

// Returns {"line":3,"error":{"code":"INVALID_ARGUMENT","message":"..."}} and a newline.
std::string JsonError(int64_t number, const absl::Status& error);
// Returns a function that makes the output for a failed line: JsonError for --output json, an empty
// line for --output text.
std::function<std::string(int64_t number, const absl::Status& error)> ErrorFormat(
    const LineFlags& flags);
// Returns compact JSON and a newline; bytes that are not UTF-8 become U+FFFD.
std::string JsonLine(const nlohmann::ordered_json& value);
// Returns a float as a JSON number with the fewest digits that read back as the same float: 0.1,
// not 0.10000000149011612.
nlohmann::ordered_json JsonFloat(float value);
nlohmann::ordered_json JsonLogProb(const TokenLogProb& token);

// Replaces newline, carriage return, tab and backslash by \n, \r, \t and \\, so that the text can
// be a field of a line of output.
std::string EscapeLine(const std::string& text);

}  // namespace quintet
