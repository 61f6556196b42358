// Helpers of the fuzz targets for weight files: they write the fuzz input to a file, and read a
// whole model from a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace quintet {

// Writes the bytes to a memory file and returns a path that ends in `suffix` (".gguf") and refers
// to it. The file is reused by the next call.
std::string FuzzFile(const uint8_t* data, size_t size, const std::string& suffix);

// Reads the file as a model: all values of its weights, its configuration and its tokenizer. Aborts
// if a step fails with a status code that a damaged file must not cause.
void ReadWeightFile(const std::string& path);

}  // namespace quintet
