// Block formats of ggml: a row of values is stored in blocks of 32 or 256 values that share
// scales. Decoded values equal those of gguf.quants.dequantize of the gguf package (PyPI) to the
// bit.
#pragma once

#include <cstdint>
#include <string>

#include "models/checkpoint/weight_files.h"

namespace quintet {

struct GgufEncoding {
  uint32_t type;         // number of the ggml type
  const char* name;      // "Q8_0"
  StoredType values;     // type of the decoded values
  int64_t block_values;  // values per block
  int64_t block_bytes;   // bytes per block
  // Decodes one block to block_values floats. Null for F32, F16 and BF16, which have no blocks.
  void (*decode)(const uint8_t* block, float* values);
};

// Returns the encoding with this number; null if it is not supported. Supported: F32, F16, BF16,
// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.
const GgufEncoding* FindGgufEncoding(uint32_t type);
std::string SupportedGgufEncodings();  // "F32, F16, ...", for messages
// Name of a ggml type for messages, supported or not: "IQ4_XS", or "type 99" for unknown numbers.
std::string GgufTypeName(uint32_t type);

}  // namespace quintet
