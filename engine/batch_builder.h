// Gathers the sequences of one decoder step into the packed form that Model::Decode reads.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "models/model.h"

namespace quintet {

class BatchBuilder {
 public:
  // Sized once for the model's limits; steps do not allocate once the greatest length has been
  // seen.
  explicit BatchBuilder(const ModelLimits& limits);

  void Clear();
  // Sequences added from here on share the encoded input whose slots these are; empty for models
  // without an encoder. The slots outlive the batch and never change for one `owner`. A group
  // without sequences is dropped.
  void BeginGroup(uint64_t owner, absl::Span<const int32_t> source_slots);
  // One sequence with new tokens. `slots` [kv_len]: one for each position, those of the new tokens
  // last; they outlive the batch.
  void AddSequence(absl::Span<const int32_t> tokens, absl::Span<const int32_t> slots);
  // The next `beams` sequences, of one new token each, take over the slots of the beams they
  // continue (DecodeBatch::moves); `row`: index in parents() of the first.
  void ReorderNext(int32_t beams, int32_t row);
  // Wants the final states of the newest sequence's last `count` tokens.
  void OutputLast(int64_t count);
  // Wants the state of one of its tokens, counted from its first new one; ascending.
  void OutputToken(int64_t index);

  bool empty() const { return kv_lens_.empty(); }
  int64_t tokens() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t sequences() const { return static_cast<int64_t>(kv_lens_.size()); }
  int64_t outputs() const { return static_cast<int64_t>(output_rows_.size()); }

  // The batch, valid until Clear.
  DecodeBatch Finish();

 private:
  void FillSources();

  std::vector<int32_t> tokens_, offsets_, kv_lens_, output_rows_, group_offsets_, source_lens_;
  std::vector<BeamMove> moves_;
  std::vector<const int32_t*> slot_rows_, source_rows_;
  std::vector<int32_t> slots_, sources_;
  int64_t slots_stride_ = 0, sources_stride_ = 0;
  // The source matrix changes only when requests come or go: whose sources it was last filled with.
  std::vector<uint64_t> owners_, filled_owners_;
};

}  // namespace quintet
