// Checkpoints for tests: temporary directories, files with given bytes, and complete small models
// with known values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "models/checkpoint/safetensors.h"
#include "models/config/config.h"

namespace quintet {

// A temporary directory, removed by the destructor.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string FileBytes(const std::string& path);  // aborts if it cannot be read
void WriteBytes(const std::string& path, const std::string& bytes);

// The bytes of a safetensors file: the header's length, the given header, then data_bytes zeros.
std::string SafetensorsBytes(const std::string& header, size_t data_bytes);

// The directory of a golden case of the repository.
std::string GoldenDirectory(const std::string& name);

inline std::string Message(const absl::Status& status) { return std::string(status.message()); }

struct TestTensor {
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;
  std::vector<float> values;  // written as `type`
};
using TestTensors = std::map<std::string, TestTensor>;

// Returns all tensors of a checkpoint, converted to f32. Integer scalars are converted, too.
TestTensors ReadTensors(const std::string& directory);
// Returns all tensors of one safetensors file, converted to f32; integer scalars, too.
TestTensors ReadTensorFile(const std::string& path);
// Writes or replaces `file` in `directory`.
void WriteTensors(const std::string& directory, const TestTensors& tensors,
                  const std::string& file = "model.safetensors");

}  // namespace quintet
