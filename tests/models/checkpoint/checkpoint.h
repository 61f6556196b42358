// Checkpoints for tests: temporary directories, files with chosen bytes, and whole small models
// whose every value is known.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/checkpoint/safetensors.h"
#include "models/config/config.h"

namespace quintet {

// A directory of its own, removed at the end.
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

std::string FileBytes(const std::string& path);  // QT_CHECKs that it can be read
void WriteBytes(const std::string& path, const std::string& bytes);

// A safetensors file: the header's length, the header as given, then data_bytes zeros.
std::string SafetensorsBytes(const std::string& header, size_t data_bytes);

// Directory of a checked-in golden case.
std::string GoldenDirectory(const std::string& name);

struct TestTensor {
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;
  std::vector<float> values;  // written as `type`
};
using TestTensors = std::map<std::string, TestTensor>;

// All tensors of a checkpoint as f32 (integer scalars too).
TestTensors ReadTensors(const std::string& directory);
// Writes directory/model.safetensors (replacing it).
void WriteTensors(const std::string& directory, const TestTensors& tensors,
                  const std::string& file = "model.safetensors");

}  // namespace quintet
