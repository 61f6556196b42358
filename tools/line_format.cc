#include "tools/line_format.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/safetensors.h"
#include "tools/flag_values.h"

namespace quintet {
namespace {

absl::Status Wrong(const std::string& message) { return absl::InvalidArgumentError(message); }

// Returns an error if the JSON object of an input line has a field that the command does not read.
absl::Status CheckFields(const nlohmann::json& line, const std::vector<std::string>& fields) {
  std::vector<std::string> known = {"text", "token_ids", "id", "meta"};
  known.insert(known.end(), fields.begin(), fields.end());
  for (const auto& [name, value] : line.items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string nearest = Nearest(name, known);
    return Wrong(absl::StrCat("input: unknown field \"", Printable(name), "\"",
                              nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"),
                              nearest.empty() ? "; put fields of your own into \"meta\"" : ""));
  }
  return absl::OkStatus();
}

// Removes the first name or value from *members and returns its JSON text. At first *members is the
// text after the opening brace of a valid JSON object; successive calls return name, value, name,
// value, ... Returns "" at the end of the object.
absl::string_view TakeJsonValue(absl::string_view* members) {
  constexpr absl::string_view kBetween = " \t\r\n,:";
  const size_t begin = std::min(members->find_first_not_of(kBetween), members->size());
  size_t end = begin;
  for (int depth = 0; end < members->size(); ++end) {
    const char c = (*members)[end];
    if (depth == 0 && (c == '}' || kBetween.find(c) != absl::string_view::npos)) break;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c != '"') continue;
    for (++end; (*members)[end] != '"'; ++end) {  // to the closing quote
      if ((*members)[end] == '\\') ++end;
    }
  }
  const absl::string_view value = members->substr(begin, end - begin);
  members->remove_prefix(end);
  return value;
}

}  // namespace

void AddLineFlags(CLI::App* command, LineFlags* flags, const std::vector<std::string>& outputs) {
  constexpr char kGroup[] = "Lines";
  command
      ->add_option("--input", flags->input,
                   "Format of the input lines: text, or json (an object with \"text\" or "
                   "\"token_ids\"; \"id\" and \"meta\" are copied to --output json).")
      ->check(CLI::IsMember({"text", "json"}))
      ->type_name("FORMAT")
      ->group(kGroup);
  command
      ->add_option("--output", flags->output,
                   "Format of the output lines: text or json; for encode json, f32 or npy.")
      ->check(CLI::IsMember(outputs))
      ->type_name("FORMAT")
      ->group(kGroup);
  command
      ->add_option("--add-special-tokens", flags->add_special_tokens,
                   "Add the special tokens of the tokenizer files, such as the end-of-sequence id.")
      ->type_name("BOOL")
      ->default_str("true")
      ->group(kGroup);
  command
      ->add_flag("--truncate", flags->truncate,
                 "Truncate inputs longer than --max-input-tokens instead of failing their lines.")
      ->group(kGroup);
  command
      ->add_option("--output-file", flags->output_file,
                   "File for the output instead of standard output. An existing file is "
                   "overwritten unless --resume is set. The suffix .gz or .zst compresses it. "
                   "Compressed input is recognised by its content.")
      ->type_name("FILE")
      ->group(kGroup);
  command
      ->add_flag("--resume", flags->resume,
                 "Continue an interrupted job: keep the whole lines of --output-file and run the "
                 "input lines after them.")
      ->group(kGroup);
  command->add_flag("--quiet", flags->quiet, "No progress and no summary on standard error.")
      ->group(kGroup);
}

SessionNeeds NeedsOf(RequestKind kind, const LineFlags& lines) {
  const bool text =
      lines.input == "text" || (kind == RequestKind::kGenerate && lines.output == "text");
  return {.kind = kind,
          .tokenizer = text ? TokenizerNeed::kRequired : TokenizerNeed::kIfThere,
          .decodes = kind == RequestKind::kGenerate,
          .replicas = true};
}

absl::StatusOr<std::vector<int32_t>> IdsFromJson(const nlohmann::json& value,
                                                 const std::string& field) {
  if (!value.is_array())
    return Wrong(absl::StrCat(field, ": expected an array of token ids, got ", value.type_name()));
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const nlohmann::json& id : value) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
      return Wrong(absl::StrCat(field, "[", ids.size(), "]: expected a token id from 0 to ",
                                INT32_MAX, ", got ", id.is_number() ? id.dump() : id.type_name()));
    }
    ids.push_back(static_cast<int32_t>(id.get<uint64_t>()));
  }
  return ids;
}

absl::StatusOr<LineInput> ReadInput(const Session& session, const LineFlags& flags,
                                    const std::string& line, const std::vector<std::string>& fields,
                                    const Embedding* embedding) {
  LineInput input;
  std::vector<int32_t> ids;
  if (flags.input == "text") {
    input.text = line;
  } else {
    absl::StatusOr<nlohmann::json> object = ParseJson(line, "input");
    if (!object
             .ok()) {  // drop the end of the message: it quotes the input, which must not be shown
      const std::string message(object.status().message());
      return Wrong(message.substr(0, message.find("; last read")));
    }
    if (!object->is_object()) {
      return Wrong(absl::StrCat("input: expected a JSON object, got ", object->type_name()));
    }
    input.fields = *std::move(object);
    QT_RETURN_IF_ERROR(CheckFields(input.fields, fields));
    const bool has_text = input.fields.contains("text");
    const bool has_ids = input.fields.contains("token_ids");
    if (has_text == has_ids)
      return Wrong("input: expected exactly one of \"text\" and \"token_ids\"");
    if (has_ids) {
      QT_ASSIGN_OR_RETURN(ids, IdsFromJson(input.fields["token_ids"], "token_ids"));
    } else {
      const nlohmann::json& text = input.fields["text"];
      if (!text.is_string()) {
        return Wrong(absl::StrCat("text: expected a string, got ", text.type_name()));
      }
      input.text = text.get<std::string>();
    }
  }
  if (!input.fields.contains("token_ids")) {
    const std::string prompt = embedding == nullptr ? "" : embedding->prompt();
    QT_ASSIGN_OR_RETURN(ids, EncodeText(session, prompt + input.text, flags.add_special_tokens));
    if (embedding != nullptr) embedding->Truncate(session.tokenizer.get(), &ids);
  } else if (embedding != nullptr) {
    QT_RETURN_IF_ERROR(embedding->CheckTokenIds());
  }
  QT_ASSIGN_OR_RETURN(input.ids, TruncateInput(session, std::move(ids), flags.truncate));
  return input;
}

std::string CarriedFields(const std::string& line) {
  constexpr absl::string_view kSpace = " \t\r\n";
  if (!nlohmann::json::accept(line)) return "";
  absl::string_view rest = line;
  absl::ConsumePrefix(&rest, "\xEF\xBB\xBF");  // a byte order mark, which the parser skips
  rest.remove_prefix(std::min(rest.find_first_not_of(kSpace), rest.size()));
  if (!absl::ConsumePrefix(&rest, "{")) return "";
  absl::string_view id, meta;
  while (true) {
    const absl::string_view key = TakeJsonValue(&rest);
    if (key.empty()) break;  // the end of the object
    const absl::string_view value = TakeJsonValue(&rest);
    const auto name = nlohmann::json::parse(key).get<std::string>();
    if (name == "id") id = value;
    if (name == "meta") meta = value;
  }
  return absl::StrCat(id.empty() ? "" : ",\"id\":", id, meta.empty() ? "" : ",\"meta\":", meta);
}

std::string WithFields(const std::string& output, const std::string& fields) {
  if (fields.empty()) return output;
  QT_CHECK(output.size() > 3 && output.compare(output.size() - 2, 2, "}\n") == 0);
  return absl::StrCat(output.substr(0, output.size() - 2), fields, "}\n");
}

std::string JsonLine(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string JsonError(int64_t number, const absl::Status& error) {
  return JsonLine({{"line", number},
                   {"error",
                    {{"code", absl::StatusCodeToString(error.code())},
                     {"message", std::string(error.message())}}}});
}

std::function<std::string(int64_t number, const absl::Status& error)> ErrorFormat(
    const LineFlags& flags) {
  if (flags.output == "json") return JsonError;
  return [](int64_t, const absl::Status&) { return std::string("\n"); };
}

nlohmann::ordered_json JsonFloat(float value) {
  if (!std::isfinite(value)) return nullptr;
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  double shortest = 0;
  std::from_chars(digits, end, shortest);
  return shortest;
}

nlohmann::ordered_json JsonLogProb(const TokenLogProb& token) {
  nlohmann::ordered_json json = {{"token_id", token.token}, {"logprob", JsonFloat(token.log_prob)}};
  for (const auto& [id, log_prob] : token.alternatives) {
    json["top"].push_back({{"token_id", id}, {"logprob", JsonFloat(log_prob)}});
  }
  return json;
}

std::string EscapeLine(const std::string& text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '\n':
        escaped += "\\n";
        break;
      case '\r':
        escaped += "\\r";
        break;
      case '\t':
        escaped += "\\t";
        break;
      case '\\':
        escaped += "\\\\";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

}  // namespace quintet
