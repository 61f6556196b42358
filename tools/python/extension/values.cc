#include "tools/python/extension/values.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quintet::python {
namespace {

std::string TypeName(nb::handle value) { return nb::type_name(value.type()).c_str(); }

std::string ReadText(nb::handle value, const std::string& where) {
  if (!PyUnicode_Check(value.ptr())) {
    ThrowType(absl::StrCat(where, ": expected a str, got ", TypeName(value)));
  }
  Py_ssize_t size = 0;
  const char* const bytes = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (bytes == nullptr) {
    PyErr_Clear();
    ThrowValue(absl::StrCat(where,
                            ": the text contains a surrogate (U+D800 to U+DFFF), which is "
                            "not a character; decode the bytes with errors=\"replace\""));
  }
  return std::string(bytes, static_cast<size_t>(size));
}

// Integers include those of numpy, but not booleans.
bool IsInteger(nb::handle value) {
  return !PyBool_Check(value.ptr()) && PyIndex_Check(value.ptr()) &&
         !PyObject_CheckBuffer(value.ptr());
}
bool IsNumpyInteger(nb::handle value) {  // numpy's scalars have the buffer protocol
  return PyIndex_Check(value.ptr()) && PyObject_CheckBuffer(value.ptr()) &&
         !PySequence_Check(value.ptr());
}

int64_t ReadInteger(nb::handle value, const std::string& where) {
  if (!IsInteger(value) && !IsNumpyInteger(value)) {
    ThrowType(absl::StrCat(where, ": expected an int, got ", TypeName(value)));
  }
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) ThrowValue(absl::StrCat(where, ": ", nb::str(index).c_str(), " is too large"));
  if (number == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return number;
}

double ReadNumber(nb::handle value, const std::string& where) {
  const bool number = PyFloat_Check(value.ptr()) || IsInteger(value) ||
                      (!PyBool_Check(value.ptr()) && !PyUnicode_Check(value.ptr()) &&
                       !PySequence_Check(value.ptr()) && PyNumber_Check(value.ptr()));
  if (!number) ThrowType(absl::StrCat(where, ": expected a float, got ", TypeName(value)));
  const double read = PyFloat_AsDouble(value.ptr());
  if (read == -1.0 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return read;
}

bool IsList(nb::handle value) {
  return PySequence_Check(value.ptr()) && !PyUnicode_Check(value.ptr()) &&
         !PyBytes_Check(value.ptr()) && !PyByteArray_Check(value.ptr());
}

// Calls visit(item, number) for the items of a list, tuple, array or other sequence.
template <typename Visit>
void VisitList(nb::handle value, const std::string& where, const char* expected, Visit visit) {
  if (!IsList(value)) {
    ThrowType(absl::StrCat(where, ": expected ", expected, ", got ", TypeName(value)));
  }
  const nb::object items = nb::steal(PySequence_Fast(value.ptr(), "expected a sequence"));
  if (!items.is_valid()) throw nb::python_error();
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.ptr()); ++i) {
    visit(nb::handle(PySequence_Fast_GET_ITEM(items.ptr(), i)), i);
  }
}

template <typename Id>
std::vector<Id> ReadIds(nb::handle value, const std::string& where) {
  std::vector<Id> ids;
  VisitList(value, where, "a str or a list of token ids", [&](nb::handle item, Py_ssize_t i) {
    const std::string place = absl::StrCat(where, "[", i, "]");
    const int64_t id = ReadInteger(item, place);
    if (id < 0 || id > INT32_MAX) {
      ThrowValue(absl::StrCat(place, ": ", id, " is not a token id; expected 0 to ", INT32_MAX));
    }
    ids.push_back(static_cast<Id>(id));
  });
  return ids;
}

EarlyStopping ReadEarlyStopping(nb::handle value) {
  if (value.is(Py_True)) return EarlyStopping::kFirst;
  if (value.is(Py_False)) return EarlyStopping::kHeuristic;
  if (PyUnicode_Check(value.ptr()) && ReadText(value, "early_stopping") == "never") {
    return EarlyStopping::kNever;
  }
  ThrowValue(absl::StrCat("early_stopping: expected True, False or \"never\", got ",
                          nb::repr(value).c_str()));
}

// Reads the fields of DecodingRequest from a dict.
class OptionReader {
 public:
  explicit OptionReader(const nb::dict& options) : options_(options) {}

  void Read(const char* name, std::optional<int64_t>* to) {
    if (const nb::object value = Get(name)) *to = ReadInteger(value, name);
  }
  void Read(const char* name, std::optional<uint64_t>* to) {
    const nb::object value = Get(name);
    if (!value) return;
    if (!IsInteger(value) && !IsNumpyInteger(value)) {
      ThrowType(absl::StrCat(name, ": expected an int, got ", TypeName(value)));
    }
    const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
    const uint64_t number = PyLong_AsUnsignedLongLong(index.ptr());
    if (PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      ThrowValue(absl::StrCat(name, ": ", nb::str(index).c_str(), " is not in [0, 2^64)"));
    }
    *to = number;
  }
  void Read(const char* name, std::optional<double>* to) {
    if (const nb::object value = Get(name)) *to = ReadNumber(value, name);
  }
  void Read(const char* name, std::optional<bool>* to) {
    const nb::object value = Get(name);
    if (!value) return;
    if (!PyBool_Check(value.ptr())) {
      ThrowType(absl::StrCat(name, ": expected True or False, got ", TypeName(value)));
    }
    *to = value.is(Py_True);
  }
  void Read(const char* name, std::optional<EarlyStopping>* to) {
    if (const nb::object value = Get(name)) *to = ReadEarlyStopping(value);
  }
  void Read(const char* name, std::vector<uint32_t>* to) {
    const nb::object value = Get(name);
    if (!value) return;
    if (!IsInteger(value)) {
      *to = ReadIds<uint32_t>(value, name);
      return;
    }
    const int64_t id = ReadInteger(value, name);
    if (id < 0 || id > INT32_MAX) ThrowValue(absl::StrCat(name, ": ", id, " is not a token id"));
    *to = {static_cast<uint32_t>(id)};
  }
  void Read(const char* name, std::vector<std::vector<uint32_t>>* to) {
    const nb::object value = Get(name);
    if (!value) return;
    VisitList(value, name, "a list of lists of token ids", [&](nb::handle item, Py_ssize_t i) {
      to->push_back(ReadIds<uint32_t>(item, absl::StrCat(name, "[", i, "]")));
    });
  }
  void Read(const char* name, std::vector<std::string>* to) {
    const nb::object value = Get(name);
    if (!value) return;
    if (PyUnicode_Check(value.ptr())) {
      *to = {ReadText(value, name)};
      return;
    }
    VisitList(value, name, "a str or a list of str", [&](nb::handle item, Py_ssize_t i) {
      to->push_back(ReadText(item, absl::StrCat(name, "[", i, "]")));
    });
  }
  // Returns the value of the option `name`, or a null object if the option is absent or None.
  nb::object Get(const char* name) const {
    if (!options_.contains(name)) return {};
    nb::object value = nb::borrow(options_[name]);
    return value.is_none() ? nb::object() : value;
  }

 private:
  const nb::dict& options_;
};

Pooling PoolingOf(const std::string& name) {
  if (name == "auto") return Pooling::kModules;
  if (name == "mean") return Pooling::kMean;
  if (name == "none") return Pooling::kNone;
  if (name == "first") return Pooling::kFirst;
  if (name == "last") return Pooling::kLast;
  if (name == "max") return Pooling::kMax;
  if (name == "mean_sqrt_len") return Pooling::kMeanSqrtLen;
  if (name == "weighted_mean") return Pooling::kWeightedMean;
  ThrowValue(absl::StrCat("pooling: unknown value ", name));  // quintet/options.py has checked it
}

}  // namespace

Input ReadInput(nb::handle value, const std::string& where) {
  Input input;
  input.is_text = PyUnicode_Check(value.ptr()) != 0;
  if (input.is_text) {
    input.text = ReadText(value, where);
  } else {
    input.ids = ReadIds<int32_t>(value, where);
  }
  return input;
}

bool IsOneInput(nb::handle value) {
  if (PyUnicode_Check(value.ptr())) return true;
  if (!IsList(value)) return false;
  const Py_ssize_t size = PySequence_Size(value.ptr());
  if (size < 0) throw nb::python_error();
  if (size == 0) return false;
  const nb::object first = nb::steal(PySequence_GetItem(value.ptr(), 0));
  if (!first.is_valid()) throw nb::python_error();
  return IsInteger(first) || IsNumpyInteger(first);
}

std::vector<Input> ReadInputs(nb::handle value, const std::string& where) {
  if (IsOneInput(value)) return {ReadInput(value, where)};
  std::vector<Input> inputs;
  VisitList(value, where, "a str, a list of token ids, or a list of these",
            [&](nb::handle item, Py_ssize_t i) {
              inputs.push_back(ReadInput(item, absl::StrCat(where, "[", i, "]")));
            });
  return inputs;
}

DecodingRequest ReadDecoding(const nb::dict& options, const Session& session) {
  DecodingRequest request;
  if (options.size() == 0) return request;
  OptionReader reader(options);
  VisitRequestFields(&request, [&](const char* name, auto* field) { reader.Read(name, field); });
  if (const nb::object prefix = reader.Get("decoder_prefix")) {
    const Input input = ReadInput(prefix, "decoder_prefix");
    request.decoder_prefix =
        input.is_text ? ValueOrThrow(EncodeText(session, input.text, /*add_special_tokens=*/false))
                      : input.ids;
  }
  return request;
}

std::vector<std::string> GenerationOptionNames() {
  std::vector<std::string> names;
  DecodingRequest request;
  VisitRequestFields(&request, [&](const char* name, auto*) { names.emplace_back(name); });
  names.emplace_back("decoder_prefix");
  return names;
}

EmbeddingOptions ReadEmbeddingOptions(const nb::dict& options) {
  EmbeddingOptions read;
  std::string pooling = "auto", pad_mode, prompt, prompt_name;
  Set(options, "pooling", &pooling);
  read.pooling = PoolingOf(pooling);
  Set(options, "normalize", &read.normalize);
  Set(options, "prompt", &prompt);
  if (options.contains("prompt")) read.prompt = prompt;
  Set(options, "prompt_name", &prompt_name);
  if (options.contains("prompt_name")) read.prompt_name = prompt_name;
  Set(options, "pad_to", &read.pad_to);
  Set(options, "pad_mode", &pad_mode);
  if (pad_mode == "zero") read.pad_mode = PadMode::kZero;
  return read;
}

std::vector<AdapterSource> ReadAdapters(const nb::dict& options) {
  std::vector<AdapterSource> adapters;
  if (!options.contains("adapters")) return adapters;
  for (const auto& [name, path] : nb::cast<nb::dict>(nb::object(options["adapters"]))) {
    adapters.push_back({nb::cast<std::string>(name), nb::cast<std::string>(path)});
  }
  return adapters;
}

int64_t AdapterSlotsFor(size_t count) {
  constexpr size_t kLeast = 8;
  return count == 0 ? 0 : static_cast<int64_t>(std::max(count, kLeast));
}

absl::Status ReadAdapter(Session* session, const AdapterSource& source) {
  absl::StatusOr<AdapterHandle> adapter = session->model->ReadAdapter(source);
  if (absl::IsFailedPrecondition(adapter.status())) {
    return absl::FailedPreconditionError(absl::StrCat(adapter.status().message(),
                                                      "; load the model with adapters={...} that "
                                                      "includes this one, or one like it"));
  }
  QT_RETURN_IF_ERROR(adapter.status());
  return session->adapters.Put(*std::move(adapter));
}

AdapterHandle AdapterOf(const nb::dict& options, const Session& session) {
  if (!options.contains("adapter")) return nullptr;
  const auto name = nb::cast<std::string>(nb::object(options["adapter"]));
  return ValueOrThrow(session.adapters.Find(name));
}

std::vector<std::string> AdapterNames(const Session& session) {
  std::vector<std::string> names;
  for (const AdapterSource& adapter : session.adapters.sources()) names.push_back(adapter.name);
  return names;
}

std::vector<std::string> PromptNames(const Session& session) {
  std::vector<std::string> names;
  if (session.modules == nullptr) return names;
  for (const auto& [name, prompt] : session.modules->prompts) names.push_back(name);
  return names;
}

absl::StatusOr<std::vector<int32_t>> IdsOf(const Session& session, const Input& input,
                                           bool add_special_tokens, bool truncate,
                                           const Embedding* embedding) {
  if (!input.is_text) {
    if (embedding != nullptr) QT_RETURN_IF_ERROR(embedding->CheckTokenIds());
    return TruncateInput(session, input.ids, truncate);
  }
  const std::string prompt = embedding == nullptr ? "" : embedding->prompt();
  absl::StatusOr<std::vector<int32_t>> ids =
      EncodeText(session, prompt + input.text, add_special_tokens);
  if (!ids.ok()) return ids.status();
  if (embedding != nullptr) embedding->Truncate(session.tokenizer.get(), &*ids);
  return TruncateInput(session, *std::move(ids), truncate);
}

}  // namespace quintet::python
