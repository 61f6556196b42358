// Test driver: runs a Model over whole rows of tokens, as a minimal engine would, and returns the
// hidden states for tests to compare.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "models/model.h"

namespace quintet {

using TokenRows = std::vector<std::vector<int32_t>>;

// As `work` or `piece`: everything at once.
constexpr int64_t kAll = int64_t{1} << 40;

int64_t TotalTokens(const TokenRows& rows);

// Returns the number of KV cache pages that RowRunner::Decode needs for `decoder_rows`. `sources`
// are the encoder inputs of these rows; empty for models without an encoder.
int64_t PagesFor(const TokenRows& decoder_rows, const TokenRows& sources, int64_t page_size);

class RowRunner {
 public:
  explicit RowRunner(Model* model) : model_(model) {}
  ~RowRunner() { set_adapters(std::vector<AdapterHandle>()); }
  RowRunner(const RowRunner&) = delete;
  RowRunner& operator=(const RowRunner&) = delete;

  // Sets the adapter of each row for all following calls; null: none. With an empty list, the
  // initial value, no row has an adapter. The model must have a slot for each adapter.
  void set_adapters(const std::vector<AdapterHandle>& adapters);
  // Like the function above, but takes indices in LoadOptions::adapters; -1: none.
  void set_adapters(const std::vector<int32_t>& adapters);

  // Encodes all rows as one batch, in slices of about `work` units (one unit is one token through
  // one layer). Returns their hidden states, packed, [total, d_model].
  std::vector<float> Encode(const TokenRows& rows, int64_t work);
  // Decodes all rows (token sequences), at most `piece` tokens of each per Model::Decode. Returns
  // all hidden states, packed, [total, d_model]. Row i attends to row i of the last Encode, if any.
  std::vector<float> Decode(const TokenRows& rows, int64_t piece);
  // Logits returns [rows, vocab], Classify returns [rows, labels]. Both take packed hidden states
  // [rows, d_model].
  std::vector<float> Logits(const std::vector<float>& states);
  std::vector<float> Classify(const std::vector<float>& states);

 private:
  std::vector<float> ReadAll(const Tensor& t);
  Tensor Allocate(int64_t rows, int64_t columns, Buffer* memory);
  std::vector<int32_t> TakeSlots(int64_t tokens);
  std::vector<std::vector<int32_t>> ProjectSources();

  Model* model_;
  std::vector<int32_t> adapters_;  // slot of each row's adapter; -1: none
  std::vector<int32_t> source_offsets_;
  int64_t next_page_ = 0;  // pages used by the current Decode, taken from the last page downwards
};

}  // namespace quintet
