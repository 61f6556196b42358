// Options of a KServe call: fields of the messages of quintet.v1, set by name from request
// parameters or from a JSON object. Only the types of the values are checked here; the handlers of
// quintet.v1 check their ranges. Errors are INVALID_ARGUMENT with a message of the form
// "parameters.NAME: text". Stateless.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "inference/grpc_inference.pb.h"
#include "nlohmann/json.hpp"
#include "quintet/v1/inference.pb.h"

namespace quintet {

namespace kserve = ::inference;

// The value of a parameter as JSON. A string parameter stays a string.
nlohmann::json JsonOf(const kserve::InferParameter& parameter);
// Converts `value`, a boolean or the string "true" or "false". Errors name the parameter `name`.
absl::StatusOr<bool> ReadFlag(const std::string& name, const nlohmann::json& value);
// Converts the value of the parameter priority. It is a number as in Triton: 0 (default), 1 (high),
// 2 (normal) or 3 (low); or one of the strings "high", "normal" and "low".
absl::StatusOr<v1::Priority> ReadPriority(const nlohmann::json& value);

// Sets the options of one request in several messages. An option sets the field of the same name in
// the first of `messages` that has such a field.
class ParameterReader {
 public:
  // `messages` must outlive the reader. `hidden` are names of fields that a request may not set.
  ParameterReader(std::vector<google::protobuf::Message*> messages,
                  std::vector<absl::string_view> hidden)
      : messages_(std::move(messages)), hidden_(std::move(hidden)) {}

  // Sets the option `name`. If the option is a number, a boolean or a list, a string value is
  // parsed as JSON. `stop` and `decoder_prefix` also take a plain string that does not begin with
  // '['. An option that is set twice is an error.
  absl::Status Set(absl::string_view name, const nlohmann::json& value);
  // Sets the options of a sampling_parameters tensor: a JSON object with the names of the fields,
  // or with those names of vLLM's SamplingParams that mean the same. As in vLLM, temperature,
  // top_k, top_p, min_p and seed turn sampling on unless do_sample is given, and a temperature of 0
  // turns it off.
  absl::Status SetSampling(absl::string_view json);

 private:
  // Names of all options, for error messages.
  std::string Names() const;

  const std::vector<google::protobuf::Message*> messages_;
  const std::vector<absl::string_view> hidden_;
  std::vector<std::string> seen_;
};

}  // namespace quintet
