// Opens the files of an adapter: a directory of PEFT or a file of kohya's format (adapter.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/adapters/adapter_config.h"
#include "models/checkpoint/safetensors.h"

namespace quintet {

struct AdapterFiles {
  std::optional<AdapterConfig> config;  // unset: kohya's format
  SafetensorsReader weights;            // headers are checked
};

// Maximum total size in bytes of an adapter's tensors.
constexpr int64_t kMaxAdapterBytes = int64_t{8} << 30;

// Errors: those of ReadAdapter that can be found without a model and without the tensors' values.
absl::StatusOr<AdapterFiles> OpenAdapterFiles(const std::string& path, bool follow_symlinks);

// Device, inode, size and times of each existing file of an adapter. Two equal stamps mean that no
// file has been replaced or written in between.
using AdapterStamp = std::vector<int64_t>;
AdapterStamp StampAdapter(const std::string& path);

}  // namespace quintet
