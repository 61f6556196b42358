// Tensors of KServe's gRPC protocol: checked reading of the inputs of a ModelInferRequest, and
// writing of the outputs of a ModelInferResponse. Elements are raw bytes (raw_input_contents) or
// typed fields (contents). Errors are INVALID_ARGUMENT with a message of the form "field: text".
// Independent of models and of gRPC. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "inference/grpc_inference.pb.h"

namespace quintet {

namespace kserve = ::inference;

// The error of a field of a request.
template <typename... Text>
absl::Status InvalidField(const std::string& field, const Text&... text) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", text...));
}

// The protocol's name of a datatype of ModelConfig: "INT32" for TYPE_INT32, "BYTES" for
// TYPE_STRING.
const char* DatatypeName(kserve::DataType type);
// Size of one element in bytes; 0 for TYPE_STRING, whose elements differ in size.
int64_t DatatypeBytes(kserve::DataType type);

// One input of a request, a view of the message. Its shape, datatype and contents are consistent.
class InputTensor {
 public:
  kserve::DataType type() const { return type_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t elements() const { return elements_; }
  // The datatype must be BYTES.
  std::vector<absl::string_view> Strings() const;
  // The datatype must be BOOL, INT32 or INT64, and `element` below elements().
  int64_t Integer(int64_t element) const;

 private:
  friend class InputTensors;
  absl::Status ReadShape(const std::string& field);
  absl::Status CheckRaw(const std::string& field) const;
  absl::Status CheckTyped(const std::string& field) const;

  const kserve::ModelInferRequest::InferInputTensor* proto_ = nullptr;
  const std::string* raw_ = nullptr;  // null: the elements are in proto_->contents()
  kserve::DataType type_ = kserve::TYPE_INVALID;
  std::vector<int64_t> shape_;
  int64_t elements_ = 0;
};

class InputTensors {
 public:
  // Describes one input that a request may have.
  struct Spec {
    const char* name;
    kserve::DataType type;  // TYPE_INT32 also admits INT64
  };
  // Checks all inputs of `request`, which must outlive the result. An error names the tensor by its
  // index.
  static absl::StatusOr<InputTensors> Read(const kserve::ModelInferRequest& request,
                                           std::span<const Spec> specs);

  // Returns null if the request has no such input.
  const InputTensor* Find(absl::string_view name) const;
  // Whether the elements are in typed fields.
  bool typed() const { return typed_; }

 private:
  absl::Status Add(const kserve::ModelInferRequest& request, int index,
                   std::span<const Spec> specs);

  std::map<std::string, InputTensor, std::less<>> tensors_;
  bool typed_ = false;
};

// Appends outputs to a response, as typed or as raw contents. The number of values must be the
// product of the shape.
class OutputTensors {
 public:
  using Shape = std::vector<int64_t>;

  OutputTensors(bool typed, kserve::ModelInferResponse* response)
      : typed_(typed), response_(response) {}

  void Strings(const char* name, const Shape& shape, std::span<const std::string> values);
  void Int32(const char* name, const Shape& shape, std::span<const int32_t> values);
  void Uint64(const char* name, const Shape& shape, std::span<const uint64_t> values);
  void Fp32(const char* name, const Shape& shape, std::span<const float> values);
  void Fp64(const char* name, const Shape& shape, std::span<const double> values);
  // `raw` holds the elements, little-endian. FP16 and BF16 may be written only as raw contents,
  // because InferTensorContents (the typed contents) has no field for them.
  void Raw(const char* name, kserve::DataType type, const Shape& shape, std::string raw);

 private:
  kserve::InferTensorContents* Add(const char* name, kserve::DataType type, const Shape& shape);

  const bool typed_;
  kserve::ModelInferResponse* const response_;
};

// Adds a parameter to a response and returns its value, which the caller sets.
kserve::InferParameter* AddParameter(const char* name, kserve::ModelInferResponse* response);

// Returns the raw form of a BYTES tensor: each element after its length, a little-endian uint32.
std::string RawStrings(std::span<const std::string> values);

}  // namespace quintet
