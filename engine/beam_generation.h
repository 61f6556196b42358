// Beam search and beam sampling of one request.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/beam_search.h"
#include "engine/generation.h"
#include "engine/text_stream.h"

namespace quintet {

class BeamGeneration : public Generation {
 public:
  BeamGeneration(const Request& request, const Tokenizer* tokenizer, int64_t vocab,
                 int64_t page_size);

  void AssignPages(std::span<const int32_t> pages) override;
  void StartFannedOut() override;
  float RowBias(int64_t row) const override { return search_->scores()[row]; }
  // If the request returns one sequence, streams the common prefix of all running beams and
  // finished hypotheses, and the rest of the best hypothesis when the search ends. If it returns
  // several sequences, streams nothing: all are delivered together at the end.
  void Deliver(ResponseSink* sink) override;
  std::vector<GeneratedSequence> TakeSequences() override;

 private:
  using Alternative = std::vector<std::pair<int32_t, float>>;

  void Select(const RowResults& results) override;
  void TakeCandidates(const RowResults& results);
  Hit HitOf(const BeamCandidate& candidate) const;
  bool CompletesStop(const BeamCandidate& candidate) const;
  void ReorderBeams();
  void Share(std::span<const int32_t> new_tokens);

  std::optional<BeamSearch> search_;  // set by AssignPages
  size_t longest_stop_ = 0;
  std::vector<BeamCandidate> candidates_;
  std::vector<Hit> hits_;
  std::vector<int32_t> moved_tokens_, moved_slots_;  // double buffers of tokens_, slots_
  std::vector<Alternative> alternatives_;            // [steps, beams] for top_logprobs
  std::unique_ptr<TextStream> shared_;  // text of the common beginning; null: not streamed
  int64_t shared_tokens_ = 0;           // new tokens pushed to shared_
};

}  // namespace quintet
