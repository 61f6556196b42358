// Fuzz target: any bytes as a tokenizer.json, loaded with each tokenizer class. Bytes after the
// first NUL, which JSON cannot contain, are a text to encode.
#include <string>

#include "models/checkpoint/json.h"
#include "models/tokenizers/tokenizer_json.h"
#include "tests/fuzz/exercise_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quintet;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  const auto json = ParseJson(input.substr(0, end), "tokenizer.json");
  if (!json.ok()) return 0;
  for (const TokenizerClass tokenizer_class :
       {TokenizerClass::kTokenizersBackend, TokenizerClass::kT5, TokenizerClass::kGpt2}) {
    TokenizerSettings settings;
    settings.tokenizer_class = tokenizer_class;
    settings.extra_ids = 2;
    const auto tokenizer = ParseTokenizerJson(*json, "tokenizer.json", settings);
    if (!tokenizer.ok()) continue;
    ExerciseTokenizer(**tokenizer, end == input.npos ? "" : input.substr(end + 1));
  }
  return 0;
}
