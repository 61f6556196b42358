// Fuzz target: any bytes as a safetensors file of a T5 text encoder, which may be quantized.
#include "tests/fuzz/weight_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quintet::ReadWeightFile(quintet::FuzzFile(data, size, ".safetensors"));
  return 0;
}
