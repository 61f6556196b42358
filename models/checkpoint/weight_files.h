// The tensors of a checkpoint, whatever the format of its files: a directory with safetensors
// files, one safetensors file of a text encoder, or a GGUF file. Readers of these formats derive
// from WeightFiles. They give every tensor the name that Hugging Face's class has for it and
// decode block formats, so that users of WeightFiles do not depend on the format.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/base/tensor.h"
#include "nlohmann/json_fwd.hpp"

namespace quintet {

// Element types of tensors, named as in safetensors files. All are little-endian.
enum class StoredType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64
};
const char* StoredTypeName(StoredType type);  // "F32", "BF16", ...
int64_t StoredTypeBytes(StoredType type);
std::optional<DType> ToDType(StoredType type);  // nullopt: no kernel supports the type
StoredType ToStoredType(DType type);
// Whether weights in files may have the type: f32, bf16 or f16.
constexpr bool IsFloat(StoredType type) {
  return type == StoredType::kF32 || type == StoredType::kBF16 || type == StoredType::kF16;
}

struct StoredTensor {
  std::string name;
  StoredType type = StoredType::kF32;  // type of the values that WeightFiles::Read returns
  std::vector<int64_t> shape;          // at most 8 dimensions; element and byte counts fit int64
  int64_t bytes = 0;                   // of all values, as `type`
  int64_t offset_bytes = 0;            // from the start of the file, header included
  int file = 0;                        // index of the file in the reader
  // Name of the format in the file if it is not `type`, e.g. "Q8_0"; else null.
  const char* encoding = nullptr;
};

// Dtype and shape of a tensor for messages: "BF16 [32, 64]".
std::string Describe(StoredType type, const std::vector<int64_t>& shape);
// Returns a name that was read from a file, such as a tensor name, in a form that is safe to print:
// escaped, at most 200 bytes.
std::string Printable(std::string_view name);

// Whether a name that was read from a file is a plain file name: not hidden, without '/' and NUL,
// at most 255 bytes. Such a name cannot refer to a file outside its directory.
bool IsPlainFileName(const std::string& name);

// Immutable after opening and thread safe.
class WeightFiles {
 public:
  // Opens the weights of a model as FindModel returns it: a directory or a file. Symbolic links are
  // refused unless `follow_symlinks` is true or the link stays within a repository's folder of a
  // hub cache. The errors are those of SafetensorsReader::Open, TextEncoderFile::Open and
  // GgufReader::Open.
  static absl::StatusOr<std::unique_ptr<const WeightFiles>> Open(const std::string& model,
                                                                 bool follow_symlinks = false);
  virtual ~WeightFiles() = default;

  // All tensors, ordered by the name of their file and, within a file, by their offset.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* Find(std::string_view name) const;  // null if there is none

  // Copies `bytes` bytes of the tensor's values, starting at byte `begin_bytes` of them, to
  // `destination`. Both numbers are multiples of the size of a value. Returns INVALID_ARGUMENT if
  // the file has become shorter.
  virtual absl::Status Read(const StoredTensor& tensor, int64_t begin_bytes, int64_t bytes,
                            void* destination) const = 0;
  // Reads all bytes of all weight files, headers included, and calls `take` for each block of bytes
  // that was read. The files are read in order of their names. Stops when `take` returns false.
  virtual absl::Status ReadFiles(
      absl::FunctionRef<bool(const void* data, int64_t bytes)> take) const = 0;

  // Fields of config.json that the weight files' metadata state, e.g. {"num_heads": 64}; an empty
  // object if there are none. The values have not been checked.
  virtual nlohmann::json ConfigFields() const;

 protected:
  WeightFiles() = default;
  WeightFiles(WeightFiles&&) = default;
  WeightFiles& operator=(WeightFiles&&) = default;

  // Prepares Find. Returns a pair of tensors that have the same name, if there is one.
  std::optional<std::pair<const StoredTensor*, const StoredTensor*>> IndexNames();

  std::vector<StoredTensor> tensors_;

 private:
  std::vector<uint32_t> by_name_;  // indices into tensors_, sorted by name
};

}  // namespace quintet
