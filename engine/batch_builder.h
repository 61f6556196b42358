// Packs the sequences of one decoder step into the DecodeBatch that Model::Decode takes. Not thread
// safe.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "models/model.h"

namespace quintet {

class BatchBuilder {
 public:
  // Reserves memory for the model's limits. The slot matrices still grow with the longest sequence
  // so far; after that, steps do not allocate.
  explicit BatchBuilder(const ModelLimits& limits);

  void Clear();
  // Starts a group: the sequences added after this call share one encoded input, whose cache slots
  // are `source_slots` (empty for models without an encoder). The slots outlive the batch and never
  // change for one `owner`. A group without sequences is dropped.
  void BeginGroup(uint64_t owner, absl::Span<const int32_t> source_slots);
  // Adds a sequence with its new tokens. `slots` [kv_len]: the cache slot of every position, new
  // tokens last. The slots outlive the batch.
  void AddSequence(absl::Span<const int32_t> tokens, absl::Span<const int32_t> slots);
  // The next `beams` sequences, of one new token each, continue other beams and take over the slots
  // of those beams (DecodeBatch::moves). `row`: index in Model::parents() of the first one.
  void ReorderNext(int32_t beams, int32_t row);
  // Requests the final hidden states of the last `count` tokens of the newest sequence.
  void OutputLast(int64_t count);
  // Requests the final hidden state of new token `index` of the newest sequence. Indices are
  // ascending.
  void OutputToken(int64_t index);

  bool empty() const { return kv_lens_.empty(); }
  int64_t tokens() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t sequences() const { return static_cast<int64_t>(kv_lens_.size()); }
  int64_t outputs() const { return static_cast<int64_t>(output_rows_.size()); }

  // Returns the batch, valid until Clear.
  DecodeBatch Finish();

 private:
  void FillSources();

  std::vector<int32_t> tokens_, offsets_, kv_lens_, output_rows_, group_offsets_, source_lens_;
  std::vector<BeamMove> moves_;
  std::vector<const int32_t*> slot_rows_, source_rows_;
  std::vector<int32_t> slots_, sources_;
  int64_t slots_stride_ = 0, sources_stride_ = 0;
  // The owners that the source matrix was last built for. It is rebuilt only when this list
  // changes.
  std::vector<uint64_t> owners_, filled_owners_;
};

}  // namespace quintet
