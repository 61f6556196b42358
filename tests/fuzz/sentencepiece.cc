// Fuzz target: any bytes as a spiece.model. Its last 256 bytes, which may contain some of its own
// vocabulary pieces and normalization rules, are also used as a text to encode.
#include <algorithm>
#include <string>

#include "models/tokenizers/sentencepiece.h"
#include "tests/fuzz/exercise_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quintet;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  TokenizerSettings settings;
  settings.extra_ids = 2;
  const auto tokenizer = ParseSentencePiece(input, "spiece.model", settings);
  if (!tokenizer.ok()) return 0;
  ExerciseTokenizer(**tokenizer, input.substr(size - std::min<size_t>(size, 256)));
  return 0;
}
