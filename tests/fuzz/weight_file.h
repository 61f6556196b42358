// What the fuzz targets of weight files share: a file with the input's bytes, and the steps from
// opening a file to reading all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace quintet {

// Writes the bytes to a memory file and returns a path that ends in `suffix` (".gguf") and refers
// to it. The file is reused by the next call.
std::string FuzzFile(const uint8_t* data, size_t size, const std::string& suffix);

// Opens the file as a model: its weights, every value of them, its configuration and tokenizer.
// Aborts if an error has another code than those that a damaged file may cause.
void ReadWeightFile(const std::string& path);

}  // namespace quintet
