// The header of a GGUF file, versions 2 and 3: key-value pairs and tensor descriptions
// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Files are untrusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "models/checkpoint/checkpoint_file.h"
#include "models/checkpoint/string_map.h"

namespace quintet {

enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

// A value of the header. Arrays are not read into memory: `offset` and `count` say where their
// elements are (GgufHeader::Strings, Numbers, Bytes).
struct GgufValue {
  GgufType type = GgufType::kU8;
  std::optional<int64_t> integer;  // integer types and bool, if the value fits
  std::optional<double> number;    // all numeric types
  std::string text;                // kString, cut to 4096 bytes
  GgufType element = GgufType::kU8;
  int64_t count = 0, offset = 0;  // kArray: elements, and their first byte in the file
};

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  // outermost dimension first, at most 4; counts of elements fit int64
  uint32_t type = 0;           // number of the ggml type
  int64_t offset = 0;          // first byte, counted from GgufHeader::data_begin
};

class GgufHeader {
 public:
  // Upper bounds of the header. The header of a real file is smaller than 20 MB and has fewer than
  // 100 keys, fewer than 1,000 tensors and fewer than 300,000 strings.
  static constexpr int64_t kMaxKeys = 65536, kMaxTensors = 100000, kMaxElements = 1 << 22;
  static constexpr int64_t kMaxHeaderBytes = int64_t{256} << 20;

  // Reads the header. `file` must outlive the result. Returns INVALID_ARGUMENT if the file is not
  // GGUF, has another version, is truncated, repeats a key or tensor name, exceeds a limit, or has
  // a size that overflows; the message names the file and the key or tensor.
  static absl::StatusOr<GgufHeader> Read(const CheckpointFile* file);

  // The value of a key; null if there is none.
  const GgufValue* Find(std::string_view key) const;
  // The value of `key`; nullopt if there is no such key or its value has another type.
  std::optional<int64_t> Integer(std::string_view key) const;
  std::optional<double> Number(std::string_view key) const;
  std::string_view Text(std::string_view key) const;  // empty if it is no string

  // Strings returns an array of strings of at most max_bytes bytes each; Numbers an array of any
  // numeric type; Bytes an array of one-byte elements. All three return INVALID_ARGUMENT if the
  // value has another type, NOT_FOUND if there is no such key.
  absl::StatusOr<std::vector<std::string>> Strings(std::string_view key, int64_t max_bytes) const;
  absl::StatusOr<std::vector<double>> Numbers(std::string_view key) const;
  absl::StatusOr<std::string> Bytes(std::string_view key) const;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  int64_t data_begin() const { return data_begin_; }  // first byte of tensor data in the file
  int64_t alignment() const { return alignment_; }

 private:
  GgufHeader() = default;
  absl::StatusOr<const GgufValue*> Array(std::string_view key) const;

  const CheckpointFile* file_ = nullptr;
  StringMap<GgufValue> values_;
  std::vector<GgufTensor> tensors_;
  int64_t data_begin_ = 0, alignment_ = 32;
};

}  // namespace quintet
