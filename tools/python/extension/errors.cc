#include "tools/python/extension/errors.h"

#include "absl/strings/str_cat.h"

namespace quintet::python {

void ThrowType(const std::string& text) { throw nb::type_error(text.c_str()); }

void ThrowValue(const std::string& text) { throw StatusError(absl::InvalidArgumentError(text)); }

PythonTypes& Types() {
  static auto* const types = new PythonTypes;
  return *types;
}

void SetPythonTypes(nb::dict types) {
  PythonTypes& t = Types();
  const auto set = [&](nb::object* to, const char* name) { *to = nb::borrow(types[name]); };
  set(&t.make_error, "make_error");
  set(&t.token_logprob, "TokenLogprob");
  set(&t.sequence, "Sequence");
  set(&t.usage, "Usage");
  set(&t.generation, "Generation");
  set(&t.chunk, "Chunk");
  set(&t.target_score, "TargetScore");
  set(&t.scores, "Scores");
  set(&t.label_score, "LabelScore");
  set(&t.classification, "Classification");
  set(&t.token_label, "TokenLabel");
  set(&t.token_classification, "TokenClassification");
  set(&t.answer, "Answer");
  set(&t.answers, "Answers");
  set(&t.tokens, "Tokens");
}

nb::object ErrorObject(const absl::Status& status, int64_t index) {
  const std::string message(status.message());
  nb::object text = nb::steal(
      PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace"));
  return Types().make_error(absl::StatusCodeToString(status.code()), text, index);
}

void RegisterErrors() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const StatusError& error) {
      const nb::object exception = ErrorObject(error.status(), error.index());
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
    }
  });
}

}  // namespace quintet::python
