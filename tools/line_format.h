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

// Returns what a command that processes lines needs of its session (SessionNeeds). With JSON input
// a tokenizer is optional, because lines may contain token ids instead of text.
SessionNeeds NeedsOf(RequestKind kind, const LineFlags& lines);

// One parsed line of input. In the file it is a text, or a JSON object {"text": "..."} or
// {"token_ids": [...]}, which has more fields for some commands.
struct LineInput {
  std::string text;          // empty if the line contains token ids
  std::vector<int32_t> ids;  // with special tokens; length checked (TruncateInput)
  nlohmann::json fields;     // the JSON object; null for text lines
};
// Parses an input line. A JSON object may have the fields text, token_ids, id, meta and those named
// in `fields`; any other field is INVALID_ARGUMENT. `embedding` is null except for encode. If
// given, its prompt is put before a line's text, and its length limit applies to both together.
absl::StatusOr<LineInput> ReadInput(const Session& session, const LineFlags& flags,
                                    const std::string& line,
                                    const std::vector<std::string>& fields = {},
                                    const Embedding* embedding = nullptr);
// Returns the fields id and meta of a line of JSON input, which the output repeats byte for byte:
// `,"id":7`. Numbers keep all digits. Returns "" if the line has neither field, and also if the
// line is not a JSON object, which ReadInput reports as an error.
std::string CarriedFields(const std::string& line);
// Adds `fields`, a result of CarriedFields, to the JSON object in `output`, a line that JsonLine
// returned, and returns the new line.
std::string WithFields(const std::string& output, const std::string& fields);
// Reads a JSON array of token ids. Errors are INVALID_ARGUMENT and name the field `field`.
absl::StatusOr<std::vector<int32_t>> IdsFromJson(const nlohmann::json& value,
                                                 const std::string& field);

// Returns the output line for a failed line:
// {"line":3,"error":{"code":"INVALID_ARGUMENT","message":"..."}} and a newline.
std::string JsonError(int64_t number, const absl::Status& error);
// Returns the function that makes the output for a failed line: it is JsonError with --output json
// and returns an empty line with --output text.
std::function<std::string(int64_t number, const absl::Status& error)> ErrorFormat(
    const LineFlags& flags);
// Returns the value as compact JSON and a newline. Bytes that are not UTF-8 are replaced by U+FFFD.
std::string JsonLine(const nlohmann::ordered_json& value);
// Returns a float as the JSON number with the fewest digits that is parsed back to the same float:
// 0.1, not 0.10000000149011612.
nlohmann::ordered_json JsonFloat(float value);
nlohmann::ordered_json JsonLogProb(const TokenLogProb& token);

// Replaces newline, carriage return, tab and backslash by the two characters \n, \r, \t and \\, so
// that the text can be a field of an output line.
std::string EscapeLine(const std::string& text);

}  // namespace quintet
