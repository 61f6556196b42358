#include "server/kserve/tensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/checked_math.h"

namespace quintet {
namespace {

constexpr int kMaxInputTensors = 16;
constexpr int kMaxDims = 3;
// Limit on the elements of a tensor, far above what a message can hold, so that sizes fit int64.
constexpr int64_t kMaxElements = int64_t{1} << 31;

struct Datatype {
  kserve::DataType type;
  const char* name;
  int64_t bytes;
};
constexpr Datatype kDatatypes[] = {
    {kserve::TYPE_BOOL, "BOOL", 1},    {kserve::TYPE_INT32, "INT32", 4},
    {kserve::TYPE_INT64, "INT64", 8},  {kserve::TYPE_UINT64, "UINT64", 8},
    {kserve::TYPE_FP16, "FP16", 2},    {kserve::TYPE_BF16, "BF16", 2},
    {kserve::TYPE_FP32, "FP32", 4},    {kserve::TYPE_FP64, "FP64", 8},
    {kserve::TYPE_STRING, "BYTES", 0},
};

const Datatype& Find(kserve::DataType type) {
  const auto found = std::find_if(std::begin(kDatatypes), std::end(kDatatypes),
                                  [type](const Datatype& one) { return one.type == type; });
  QT_CHECK(found != std::end(kDatatypes));
  return *found;
}

// Returns the type named `datatype` if an input of type `admitted` may have it, or TYPE_INVALID.
kserve::DataType AdmittedType(const std::string& datatype, kserve::DataType admitted) {
  if (datatype == DatatypeName(admitted)) return admitted;
  if (admitted == kserve::TYPE_INT32 && datatype == DatatypeName(kserve::TYPE_INT64)) {
    return kserve::TYPE_INT64;
  }
  return kserve::TYPE_INVALID;
}

std::string Names(std::span<const InputTensors::Spec> specs) {
  std::string names;
  for (const auto& spec : specs) absl::StrAppend(&names, names.empty() ? "" : ", ", spec.name);
  return names;
}

// Number of values in all fields of `contents`.
int64_t CountValues(const kserve::InferTensorContents& contents) {
  return int64_t{contents.bool_contents_size()} + contents.int_contents_size() +
         contents.int64_contents_size() + contents.uint_contents_size() +
         contents.uint64_contents_size() + contents.fp32_contents_size() +
         contents.fp64_contents_size() + contents.bytes_contents_size();
}

uint32_t LengthAt(absl::string_view raw, size_t at) {
  uint32_t length;
  std::memcpy(&length, raw.data() + at, sizeof(length));
  return length;
}

template <typename T>
std::string RawBytes(std::span<const T> values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

}  // namespace

const char* DatatypeName(kserve::DataType type) { return Find(type).name; }
int64_t DatatypeBytes(kserve::DataType type) { return Find(type).bytes; }

std::vector<absl::string_view> InputTensor::Strings() const {
  QT_CHECK(type_ == kserve::TYPE_STRING);
  std::vector<absl::string_view> strings;
  strings.reserve(static_cast<size_t>(elements_));
  if (raw_ == nullptr) {
    for (const std::string& value : proto_->contents().bytes_contents()) strings.push_back(value);
    return strings;
  }
  const absl::string_view raw = *raw_;
  for (size_t at = 0; at < raw.size();) {
    const size_t length = LengthAt(raw, at);
    strings.push_back(raw.substr(at + sizeof(uint32_t), length));
    at += sizeof(uint32_t) + length;
  }
  return strings;
}

int64_t InputTensor::Integer(int64_t element) const {
  QT_CHECK(element >= 0 && element < elements_);
  const int i = static_cast<int>(element);
  if (raw_ == nullptr) {
    const kserve::InferTensorContents& contents = proto_->contents();
    if (type_ == kserve::TYPE_BOOL) return contents.bool_contents(i) ? 1 : 0;
    return type_ == kserve::TYPE_INT32 ? contents.int_contents(i) : contents.int64_contents(i);
  }
  if (type_ == kserve::TYPE_BOOL) return (*raw_)[static_cast<size_t>(i)] != 0 ? 1 : 0;
  const char* const from = raw_->data() + element * DatatypeBytes(type_);
  if (type_ == kserve::TYPE_INT32) {
    int32_t value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  int64_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

absl::Status InputTensor::ReadShape(const std::string& field) {
  if (proto_->shape_size() < 1 || proto_->shape_size() > kMaxDims) {
    return InvalidField(field + ".shape", "must have 1 to ", kMaxDims, " dimensions, got ",
                        proto_->shape_size());
  }
  shape_.assign(proto_->shape().begin(), proto_->shape().end());
  for (size_t i = 0; i < shape_.size(); ++i) {
    if (shape_[i] < 1) {
      return InvalidField(absl::StrCat(field, ".shape[", i, "]"), "must be positive, got ",
                          shape_[i]);
    }
  }
  const std::optional<int64_t> elements = CheckedProduct(1, shape_);
  if (!elements.has_value() || *elements > kMaxElements) {
    return InvalidField(field + ".shape", "has more than ", kMaxElements, " elements");
  }
  elements_ = *elements;
  return absl::OkStatus();
}

absl::Status InputTensor::CheckRaw(const std::string& field) const {
  const absl::string_view raw = *raw_;
  if (type_ != kserve::TYPE_STRING) {
    const int64_t expected = elements_ * DatatypeBytes(type_);
    if (static_cast<int64_t>(raw.size()) == expected) return absl::OkStatus();
    return InvalidField(field, "must be ", expected, " bytes (", elements_, " elements of ",
                        DatatypeName(type_), "), got ", raw.size());
  }
  size_t at = 0;
  for (int64_t i = 0; i < elements_; ++i) {
    const size_t left = raw.size() - at;
    if (left < sizeof(uint32_t)) {
      return InvalidField(field, "must hold ", elements_, " elements of BYTES, but ends after ", i);
    }
    const size_t length = LengthAt(raw, at);
    if (length > left - sizeof(uint32_t)) {
      return InvalidField(field, "element ", i, " has a length of ", length, " bytes, but only ",
                          left - sizeof(uint32_t), " follow");
    }
    at += sizeof(uint32_t) + length;
  }
  if (at == raw.size()) return absl::OkStatus();
  return InvalidField(field, "must hold ", elements_, " elements of BYTES, but ", raw.size() - at,
                      " bytes follow them");
}

absl::Status InputTensor::CheckTyped(const std::string& field) const {
  const kserve::InferTensorContents& contents = proto_->contents();
  const auto [name, values] = [&]() -> std::pair<const char*, int> {
    switch (type_) {
      case kserve::TYPE_BOOL:
        return {"bool_contents", contents.bool_contents_size()};
      case kserve::TYPE_INT32:
        return {"int_contents", contents.int_contents_size()};
      case kserve::TYPE_INT64:
        return {"int64_contents", contents.int64_contents_size()};
      default:
        return {"bytes_contents", contents.bytes_contents_size()};
    }
  }();
  if (CountValues(contents) != values) {
    return InvalidField(field + ".contents", "must use only ", name, " for ", DatatypeName(type_));
  }
  if (values == elements_) return absl::OkStatus();
  return InvalidField(absl::StrCat(field, ".contents.", name), "must hold ", elements_,
                      " elements, as the shape says, got ", values);
}

absl::StatusOr<InputTensors> InputTensors::Read(const kserve::ModelInferRequest& request,
                                                std::span<const Spec> specs) {
  const int count = request.inputs_size(), raw = request.raw_input_contents_size();
  if (count < 1 || count > kMaxInputTensors) {
    return InvalidField("inputs", "must hold 1 to ", kMaxInputTensors, " tensors, got ", count);
  }
  if (raw != 0 && raw != count) {
    return InvalidField("raw_input_contents", "must be empty or hold one entry for each of the ",
                        count, " inputs, got ", raw);
  }
  InputTensors tensors;
  tensors.typed_ = raw == 0;
  for (int i = 0; i < count; ++i) QT_RETURN_IF_ERROR(tensors.Add(request, i, specs));
  return tensors;
}

absl::Status InputTensors::Add(const kserve::ModelInferRequest& request, int index,
                               std::span<const Spec> specs) {
  const auto& proto = request.inputs(index);
  const std::string field = absl::StrCat("inputs[", index, "]");
  const auto spec = std::find_if(specs.begin(), specs.end(),
                                 [&](const Spec& one) { return proto.name() == one.name; });
  if (spec == specs.end()) {
    return InvalidField(field + ".name", "must be one of ", Names(specs));
  }
  for (const auto& parameter : proto.parameters()) {
    // The Python client kserve sends a length, which only its HTTP protocol needs.
    if (parameter.key() == "binary_data_size") continue;
    return InvalidField(field + ".parameters", "are not supported (no shared memory)");
  }
  InputTensor tensor;
  tensor.proto_ = &proto;
  tensor.type_ = AdmittedType(proto.datatype(), spec->type);
  if (tensor.type_ == kserve::TYPE_INVALID) {
    return InvalidField(field + ".datatype", "must be ", DatatypeName(spec->type),
                        spec->type == kserve::TYPE_INT32 ? " or INT64" : "", " for ", spec->name);
  }
  QT_RETURN_IF_ERROR(tensor.ReadShape(field));
  if (typed_) {
    QT_RETURN_IF_ERROR(tensor.CheckTyped(field));
  } else if (CountValues(proto.contents()) > 0) {
    return InvalidField(field + ".contents", "must be empty if raw_input_contents is used");
  } else {
    tensor.raw_ = &request.raw_input_contents(index);
    QT_RETURN_IF_ERROR(tensor.CheckRaw(absl::StrCat("raw_input_contents[", index, "]")));
  }
  if (!tensors_.emplace(spec->name, std::move(tensor)).second) {
    return InvalidField(field + ".name", spec->name, " is given twice");
  }
  return absl::OkStatus();
}

const InputTensor* InputTensors::Find(absl::string_view name) const {
  const auto found = tensors_.find(std::string_view(name.data(), name.size()));
  return found == tensors_.end() ? nullptr : &found->second;
}

kserve::InferTensorContents* OutputTensors::Add(const char* name, kserve::DataType type,
                                                const Shape& shape) {
  auto* output = response_->add_outputs();
  output->set_name(name);
  output->set_datatype(DatatypeName(type));
  output->mutable_shape()->Add(shape.begin(), shape.end());
  return typed_ ? output->mutable_contents() : nullptr;
}

void OutputTensors::Strings(const char* name, const Shape& shape,
                            std::span<const std::string> values) {
  if (auto* contents = Add(name, kserve::TYPE_STRING, shape); contents != nullptr) {
    for (const std::string& value : values) contents->add_bytes_contents(value);
  } else {
    response_->add_raw_output_contents(RawStrings(values));
  }
}

void OutputTensors::Int32(const char* name, const Shape& shape, std::span<const int32_t> values) {
  if (auto* contents = Add(name, kserve::TYPE_INT32, shape); contents != nullptr) {
    contents->mutable_int_contents()->Add(values.begin(), values.end());
  } else {
    response_->add_raw_output_contents(RawBytes(values));
  }
}

void OutputTensors::Uint64(const char* name, const Shape& shape, std::span<const uint64_t> values) {
  if (auto* contents = Add(name, kserve::TYPE_UINT64, shape); contents != nullptr) {
    contents->mutable_uint64_contents()->Add(values.begin(), values.end());
  } else {
    response_->add_raw_output_contents(RawBytes(values));
  }
}

void OutputTensors::Fp32(const char* name, const Shape& shape, std::span<const float> values) {
  if (auto* contents = Add(name, kserve::TYPE_FP32, shape); contents != nullptr) {
    contents->mutable_fp32_contents()->Add(values.begin(), values.end());
  } else {
    response_->add_raw_output_contents(RawBytes(values));
  }
}

void OutputTensors::Fp64(const char* name, const Shape& shape, std::span<const double> values) {
  if (auto* contents = Add(name, kserve::TYPE_FP64, shape); contents != nullptr) {
    contents->mutable_fp64_contents()->Add(values.begin(), values.end());
  } else {
    response_->add_raw_output_contents(RawBytes(values));
  }
}

void OutputTensors::Raw(const char* name, kserve::DataType type, const Shape& shape,
                        std::string raw) {
  if (auto* contents = Add(name, type, shape); contents != nullptr) {
    QT_CHECK(type == kserve::TYPE_FP32);
    auto* values = contents->mutable_fp32_contents();
    values->Resize(static_cast<int>(raw.size() / sizeof(float)), 0.0f);
    std::memcpy(values->mutable_data(), raw.data(), raw.size());
  } else {
    response_->add_raw_output_contents(std::move(raw));
  }
}

kserve::InferParameter* AddParameter(const char* name, kserve::ModelInferResponse* response) {
  auto* const parameter = response->add_parameters();
  parameter->set_key(name);
  return parameter->mutable_value();
}

std::string RawStrings(std::span<const std::string> values) {
  size_t bytes = 0;
  for (const std::string& value : values) bytes += sizeof(uint32_t) + value.size();
  std::string raw;
  raw.reserve(bytes);
  for (const std::string& value : values) {
    const uint32_t length = static_cast<uint32_t>(value.size());
    raw.append(reinterpret_cast<const char*>(&length), sizeof(length));
    raw.append(value);
  }
  return raw;
}

}  // namespace quintet
