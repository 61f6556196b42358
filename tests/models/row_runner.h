// Drives a Model over whole rows of tokens, the way an engine would in its simplest form: what
// tests compare is the states.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model.h"

namespace quintet {

using TokenRows = std::vector<std::vector<int32_t>>;

int64_t TotalTokens(const TokenRows& rows);

// Pages that Decode needs for these rows (sources: empty for models without an encoder).
int64_t PagesFor(const TokenRows& decoder_rows, const TokenRows& sources, int64_t page_size);

class RowRunner {
 public:
  explicit RowRunner(Model* model) : model_(model) {}

  // Encoder states of all rows, packed, [total, d_model]; slices of `work` units.
  std::vector<float> Encode(const TokenRows& rows, int64_t work);
  // Decoder states of all rows, packed, [total, d_model], at most `piece` tokens of a row per call.
  // Models with an encoder: row i reads row i of the last Encode.
  std::vector<float> Decode(const TokenRows& rows, int64_t piece);
  // [rows, vocab] and [rows, labels] of packed states.
  std::vector<float> Logits(const std::vector<float>& states);
  std::vector<float> Classify(const std::vector<float>& states);

 private:
  std::vector<float> ReadAll(const Tensor& t);
  Tensor Room(int64_t rows, int64_t columns, Buffer* memory);
  std::vector<int32_t> TakeSlots(int64_t tokens);
  std::vector<std::vector<int32_t>> ProjectSources();

  Model* model_;
  std::vector<int32_t> source_offsets_;
  int64_t next_page_ = 0;  // of the current Decode; pages are handed out from the last one down
};

}  // namespace quintet
