// Fuzz target: any bytes as a text encoder in one safetensors file, with scales and markers.
#include "tests/fuzz/weight_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quintet::ReadWeightFile(quintet::FuzzFile(data, size, ".safetensors"));
  return 0;
}
