// Reads the members of a JSON object of a request into fields of quintet.v1. The values are checked
// for their type only; the methods of quintet.v1 check ranges. A member that is null counts as
// absent, as clients send null for options that are not set. Errors are INVALID_ARGUMENT with a
// message of the form "member: expected ..., got ...". Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "quintet/v1/inference.pb.h"

namespace quintet {

// Returns the error "name: expected EXPECTED, got TYPE OR NUMBER".
absl::Status ExpectedJson(absl::string_view name, absl::string_view expected,
                          const nlohmann::json& got);

class JsonFields {
 public:
  // `object` must outlive this object. `prefix` comes before the names in errors: "parameters.". If
  // `object` is not a JSON object, status() is an error.
  explicit JsonFields(const nlohmann::json& object, std::string prefix = "");

  // Returns the member, null if it is absent, and marks it as read.
  const nlohmann::json* Find(const std::string& name);
  // Returns true if the member is present. Does not mark it as read.
  bool Peek(const std::string& name) const;
  bool WasRead(const std::string& name) const { return read_.count(name) > 0; }

  // Sets *to to the member `name`. If it is absent, or of a wrong type (error), *to is unchanged.
  void Read(const std::string& name, std::string* to);
  void Read(const std::string& name, bool* to);
  void Read(const std::string& name, std::optional<double>* to);
  void Read(const std::string& name, std::optional<uint32_t>* to);
  void Read(const std::string& name, std::optional<uint64_t>* to);
  // Reads 1 to 64 inputs: a text, an array of texts, an array of token ids, or an array of such
  // arrays. Sets *list to true for an array of inputs (even of one), to false for a single input.
  // With `wrapped_texts`, an element of a list may be an array of one text: it is read as the text.
  void ReadInputs(const std::string& name, std::vector<v1::Input>* to, bool* list,
                  bool wrapped_texts = false);
  // An array of texts, at most `limit`.
  void ReadTexts(const std::string& name, size_t limit, std::vector<std::string>* to);

  // Sets fields of DecodingOptions from the JSON members of equal names that were not read before.
  void ReadDecoding(v1::DecodingOptions* to);
  // Reads model, adapter, priority ("low", ...), request_id, add_special_tokens and truncate.
  void ReadCall(v1::CallOptions* to);
  // Reads the members pooling ("mean", ...), normalize, prompt_name, prompt, pad_to and pad_mode
  // ("zero", ...).
  void ReadEncodeOptions(v1::EncodeOptions* to);

  // Marks a member as read. Records an error unless it is absent or its JSON text is in `harmless`.
  void Refuse(const std::string& name, const std::vector<absl::string_view>& harmless,
              absl::string_view reason);
  void Fail(absl::Status status) { status_.Update(std::move(status)); }
  void Fail(const std::string& name, absl::string_view text);

  const absl::Status& status() const { return status_; }
  std::string FullName(const std::string& name) const { return prefix_ + name; }

 private:
  template <typename Integer>
  void ReadInteger(const std::string& name, std::optional<Integer>* to);

  const nlohmann::json& object_;
  const std::string prefix_;
  std::set<std::string> read_;
  absl::Status status_;
};

// Reads one input: a text or an array of token ids.
absl::Status ReadInput(const std::string& name, const nlohmann::json& value, v1::Input* to);

}  // namespace quintet
