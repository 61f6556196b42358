// Packs whole inputs into the EncodeBatch that Model::BeginEncode takes. Not thread safe.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "models/model.h"

namespace quintet {

// Which query rows see a key row: rows [from, until) of the same input (causal models only).
// By default, a key row is seen by itself and all later rows.
struct SeenBy {
  static constexpr int32_t kAll = std::numeric_limits<int32_t>::max();
  int32_t from = 0, until = kAll;
};

class InputBatch {
 public:
  // Reserves memory for `tokens` tokens: batches of up to that size allocate nothing.
  void Reserve(int64_t tokens);
  void Clear();
  // Sets the adapter of the inputs that are added after this call (EncodeBatch::adapters); -1:
  // none.
  void SetAdapter(int32_t adapter) { adapter_ = adapter; }
  // Adds a whole input. Its rows have the default SeenBy, so no key is hidden from a query except
  // by the model itself (causality).
  void Add(std::span<const int32_t> tokens);
  // Adds an input row by row: BeginInput, then AddRow for each token.
  void BeginInput();
  void AddRow(int32_t token, int32_t position, SeenBy seen_by);

  int64_t tokens() const { return static_cast<int64_t>(tokens_.size()); }
  // Number of rows of the current input so far.
  int32_t rows() const { return static_cast<int32_t>(tokens_.size()) - begin_; }

  // Returns the batch, valid until Clear. Positions and masks, which only causal models support,
  // stay empty unless some row needs them.
  EncodeBatch Finish();

 private:
  // Arrays of EncodeBatch: offsets_ [inputs + 1], adapters_ [inputs], the others [tokens].
  std::vector<int32_t> tokens_, offsets_, adapters_, positions_, lower_begin_, upper_end_;
  int32_t adapter_ = -1;    // of the next input
  int32_t begin_ = 0;       // first row of the current input
  bool limited_ = false;    // some row is hidden from later rows of its input
  bool both_ways_ = false;  // some row is visible to earlier rows of its input
  bool moved_ = false;      // some position is not the row's index in its input
};

}  // namespace quintet
