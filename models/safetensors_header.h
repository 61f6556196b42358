// The JSON header of a safetensors file, parsed as a stream so that a hostile header costs no more
// memory than its own length.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "models/safetensors.h"

namespace quintet {

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // by offset; offset_bytes counts from the start of the data
  std::map<std::string, std::string> metadata;
};

// Parses and checks every rule of SafetensorsReader::Open that concerns the header. `data_bytes` is
// what follows it in the file. INVALID_ARGUMENT starts with `where`.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, int64_t data_bytes,
                                                         const std::string& where);

}  // namespace quintet
