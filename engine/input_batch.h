// Gathers whole inputs into the packed form that Model::BeginEncode reads.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "models/model.h"

namespace quintet {

// The rows of its input that see a row of a causal model: [from, until). Without a mask a row is
// seen by itself and all after it.
struct SeenBy {
  static constexpr int32_t kAll = std::numeric_limits<int32_t>::max();
  int32_t from = 0, until = kAll;
};

class InputBatch {
 public:
  // Reserves memory for `tokens` tokens; up to that number nothing is allocated later.
  void Reserve(int64_t tokens);
  void Clear();
  // A whole input without a mask.
  void Add(absl::Span<const int32_t> tokens);
  // An input row by row.
  void BeginInput();
  void AddRow(int32_t token, int32_t position, SeenBy seen_by);

  int64_t tokens() const { return static_cast<int64_t>(tokens_.size()); }
  // Of the input under way.
  int32_t rows() const { return static_cast<int32_t>(tokens_.size()) - begin_; }

  // The batch, valid until Clear. Inputs without a mask ask for nothing that only some models do.
  EncodeBatch Finish();

 private:
  std::vector<int32_t> tokens_, offsets_, positions_, lower_begin_, upper_end_;
  int32_t begin_ = 0;
  bool limited_ = false, both_ways_ = false, moved_ = false;
};

}  // namespace quintet
