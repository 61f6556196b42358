// Parses the JSON header of a safetensors file as a stream, so that a hostile header takes no more
// memory than its own length.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "models/checkpoint/safetensors.h"

namespace quintet {

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // by offset; offset_bytes counts from the end of the header
  std::map<std::string, std::string> metadata;
};

// Parses the header and makes all checks of SafetensorsReader::Open that concern a header.
// `data_bytes` is the size of the file after the header. The message of INVALID_ARGUMENT starts
// with `where`.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, int64_t data_bytes,
                                                         const std::string& where);

}  // namespace quintet
