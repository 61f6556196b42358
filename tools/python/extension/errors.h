// With these classes and functions the extension raises the exceptions of quintet/errors.py.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nanobind/nanobind.h"
#include "nanobind/stl/string.h"  // casts of std::string, which every file needs

namespace quintet::python {

namespace nb = nanobind;

// Reports a failed call. Python gets it as the exception class that belongs to the status code.
// `index`: number of the input that failed, counted from 0; -1 if no single input is at fault.
class StatusError : public std::exception {
 public:
  explicit StatusError(absl::Status status, int64_t index = -1)
      : status_(std::move(status)), index_(index) {}
  const char* what() const noexcept override { return "quintet::StatusError"; }
  const absl::Status& status() const { return status_; }
  int64_t index() const { return index_; }

 private:
  absl::Status status_;
  int64_t index_;
};

// Throws an exception that Python gets as a TypeError with this text.
[[noreturn]] void ThrowType(const std::string& text);
// Throws an exception that Python gets as an InvalidArgumentError with this text.
[[noreturn]] void ThrowValue(const std::string& text);

template <typename T>
T ValueOrThrow(absl::StatusOr<T> value) {
  if (!value.ok()) throw StatusError(value.status());
  return *std::move(value);
}
inline void OkOrThrow(const absl::Status& status) {
  if (!status.ok()) throw StatusError(status);
}

// Returns the Python exception object for a failed status. Needs the GIL.
nb::object ErrorObject(const absl::Status& status, int64_t index);

// Classes of quintet/results.py and the function that makes exceptions, set by SetPythonTypes. They
// are never freed: objects of the extension may outlive the interpreter's modules.
struct PythonTypes {
  nb::object make_error, token_logprob, sequence, usage, generation, chunk, target_score, scores,
      label_score, classification, token_label, token_classification, answer, answers, tokens;
};
PythonTypes& Types();
void SetPythonTypes(nb::dict types);
void RegisterErrors();

}  // namespace quintet::python
