// Fuzz target: any bytes as a GGUF file.
#include "tests/fuzz/weight_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quintet::ReadWeightFile(quintet::FuzzFile(data, size, ".gguf"));
  return 0;
}
