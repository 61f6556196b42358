// Packs the sequences of one decoder step into the DecodeBatch that Model::Decode takes. Not thread
// safe, except for SetSequence, SetGroup, SetAdapters and SetMove (see Resize).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/runtime/thread_pool.h"
#include "models/model.h"

namespace quintet {

class BatchBuilder {
 public:
  // Reserves memory for the model's limits, so that building a batch rarely allocates: only the
  // matrices slots_ and sources_ grow, whenever a batch needs more than any batch before it. `pool`
  // outlives the builder; its threads fill slots_ for large batches.
  BatchBuilder(const ModelLimits& limits, ThreadPool* pool);

  void Clear();
  // Sets the adapter of the sequences that are added after this call (DecodeBatch::adapters); -1:
  // none.
  void SetAdapter(int32_t adapter) { adapter_ = adapter; }
  // Starts a group: the sequences added after this call share one encoded input, whose cache slots
  // are `source_slots` (empty for models without an encoder). The caller keeps the span valid until
  // the batch has run. `owner` identifies the request; calls with the same owner, in this and in
  // later batches, must pass the same slots. A group without sequences is dropped.
  void BeginGroup(uint64_t owner, std::span<const int32_t> source_slots);
  // Adds a sequence with its new tokens. `slots` [kv_len] holds the cache slot of every position,
  // new tokens last; the caller keeps that span valid until the batch has run.
  void AddSequence(std::span<const int32_t> tokens, std::span<const int32_t> slots);
  // Requests the decoder's output hidden states of the last `count` tokens of the sequence that was
  // added last.
  void OutputLast(int64_t count);
  // Requests the decoder's output hidden state of one new token of the sequence that was added
  // last. `index`: number of the token among the sequence's new tokens, counted from 0. The indices
  // of one sequence must ascend from call to call.
  void OutputToken(int64_t index);

  // Another way to build a batch, if each sequence has one new token, whose hidden state is
  // returned: call Resize instead of Clear, then SetSequence, SetGroup and SetMove once for each
  // index, and SetAdapters. Threads may call these four functions concurrently for different
  // indices. `groups`: number of requests, or 0 for models without an encoder. `moves`: number of
  // SetMove calls.
  void Resize(int64_t sequences, int64_t groups, int64_t moves);
  // Sets group `group` of the batch (what a group is, see BeginGroup). Its sequences are those from
  // the end of group `group` - 1 up to, but not including, sequence `end`.
  void SetGroup(int64_t group, int64_t end, uint64_t owner, std::span<const int32_t> source_slots);
  // Sets the new token of sequence `sequence`, and its cache slots (`slots` as for AddSequence).
  void SetSequence(int64_t sequence, int32_t token, std::span<const int32_t> slots);
  // Sets the adapter (-1: none) of sequences [begin, end). The calls must cover every sequence.
  void SetAdapters(int64_t begin, int64_t end, int32_t adapter);
  // Makes the device reorder the beams of one request, because the host does not know their parents
  // yet: beam b takes over the cache slots of all earlier positions from its parent beam. The index
  // of that parent among these beams is Model::parent_beams()[move.row + b].
  void SetMove(int64_t index, const BeamMove& move) { moves_[index] = move; }

  bool empty() const { return kv_lens_.empty(); }
  int64_t tokens() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t sequences() const { return static_cast<int64_t>(kv_lens_.size()); }
  int64_t outputs() const { return static_cast<int64_t>(output_rows_.size()); }

  // Returns the batch, valid until Clear or Resize.
  DecodeBatch Finish();

 private:
  void FillSources();

  ThreadPool* const pool_;

  // Arrays of DecodeBatch.
  std::vector<int32_t> tokens_;         // [tokens]
  std::vector<int32_t> offsets_;        // [sequences + 1] in tokens_
  std::vector<int32_t> kv_lens_;        // [sequences]
  std::vector<int32_t> output_rows_;    // [outputs] rows whose hidden states are returned
  std::vector<int32_t> group_offsets_;  // [groups + 1] in sequences
  std::vector<int32_t> source_lens_;    // [groups] tokens of the encoded input
  std::vector<int32_t> adapters_;       // [sequences]
  int32_t adapter_ = -1;                // of the next sequence
  std::vector<BeamMove> moves_;
  std::vector<int32_t> slots_;    // [sequences, slots_stride_], built by Finish from slot_rows_
  std::vector<int32_t> sources_;  // [groups, sources_stride_], built by Finish from source_rows_
  int64_t slots_stride_ = 0, sources_stride_ = 0;
  std::vector<const int32_t*> slot_rows_;    // [sequences] the callers' slots
  std::vector<const int32_t*> source_rows_;  // [groups] the callers' source slots
  std::vector<uint64_t> owners_;             // [groups]
  // The owners (ids of the requests) of the groups for which sources_, the table of the encoded
  // inputs' cache slots, was last built. The table is rebuilt only when this list changes.
  std::vector<uint64_t> filled_owners_;
};

}  // namespace quintet
