// From a step's states to its next tokens: logits, the rules on them (logits processors), the
// ranking of greedy and beam requests and the draws of sampled ones. To the host come back the
// tokens or candidates, and log-probabilities where a request asks for them.
//
// A search is planned on the host first, as small arrays that are uploaded only where they differ
// from those of the search before. Then its kernels are queued.
//
// Two searches, numbered 0 and 1, may be under way: the second can be queued before the results of
// the first are known to the host, since it takes the tokens and the beams' scores from the device.
// A search that brings nothing to the host but tokens or candidates is recorded as a graph once its
// shape has come a few times, and replayed from then on.
//
// One thread, that of the engine.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/generation.h"
#include "engine/mirrored_array.h"
#include "engine/ranking_plan.h"
#include "kernels/beam_sampling.h"
#include "kernels/beam_step.h"
#include "kernels/buffer.h"
#include "kernels/logit_rules.h"
#include "kernels/sampling.h"
#include "kernels/selection.h"
#include "models/model.h"

namespace quintet {

// A generation that takes part in a search.
struct Searching {
  uint64_t id = 0;
  Generation* generation = nullptr;
  int32_t sequence = 0;  // index in the batch of its first row's sequence; the others follow
  bool ahead = false;    // its histories are one token longer than the host knows
  int32_t carried = -1;  // with `ahead`: its first row in the search under way
};

// Where one generation's rows and results are in a search; indices of their first ones.
struct SearchPart {
  uint64_t id = 0;
  int32_t row = 0;
  int32_t entry = 0;                       // in the ranking
  int32_t draw = 0;                        // in the draws, when it has any
  int32_t lanes_begin = 0, lanes_end = 0;  // in the search's lanes
};

class TokenSearch {
 public:
  // `runs_ahead`: beams' next tokens too are left where the model's next step takes them
  // (BeamStep).
  TokenSearch(Model* model, bool runs_ahead);
  // Bytes that Allocate would take, for a model that is not loaded.
  static int64_t BufferBytes(const ModelConfig& config, const Stream& stream);
  absl::Status Allocate();

  // How many of `wanted`, from the first on, fit one search; at least one.
  size_t Fitting(absl::Span<const Searching> wanted) const;
  // Plans search `which` for `wanted`, which fit, and queues the upload of the plan.
  void Plan(absl::Span<const Searching> wanted, int which);
  // Queues the planned search of the latest Decode's rows `states` [rows(), d_model].
  void Queue(const Tensor& states, int which);
  // Queues a step of the model and behind it the planned search of the rows it wants.
  void QueueStep(const DecodeBatch& batch, int which);
  // Waits for the search's results. INTERNAL when the device failed.
  absl::Status Wait(int which);

  // The planned search; valid until it is planned anew.
  int64_t rows(int which) const { return searches_[which].rows; }
  absl::Span<const SearchPart> parts(int which) const { return searches_[which].parts; }
  absl::Span<const int32_t> LanesOf(const SearchPart& part, int which) const;
  // Whether the model's chosen()[i] will be the next token of row i, or of the beam that becomes
  // row i, whose predecessor is then parents()[i].
  bool ChoosesHere(int which) const {
    return searches_[which].by_row || searches_[which].steps_beams;
  }

  // Lets the generation of a part take its tokens.
  struct Chosen {
    Generation* generation = nullptr;
    const SearchPart* part = nullptr;
  };
  void Select(absl::Span<const Chosen> chosen, int which);

 private:
  // What a search takes, known before its step runs.
  struct Needs {
    bool ranks = false, together = false, log_softmax = false;
    bool ruled_sums = false;  // rows that rules turn into log-probabilities
    bool logprobs = false;
    int64_t alternatives = 0;
    int64_t width = 1;     // of the ranking
    bool carries = false;  // scores of beams from the search before
    auto operator<=>(const Needs&) const = default;
  };
  struct Search {
    std::vector<SearchPart> parts;
    std::vector<int32_t> lanes;  // of the parts' entries
    int64_t rows = 0;
    bool one_lane_a_row = false, beams = false;
    // One lane a row: without beams its next tokens are by row at once, with beams a BeamStep
    // leaves them.
    bool by_row = false, steps_beams = false;
    Needs needs;
  };

  // What a recorded search depends on besides what its kernels read: searches that agree in it are
  // the same launches.
  struct Shape {
    int which = 0;
    Needs needs;
    bool rule_tokens = false, eos = false;
    int64_t rows = 0, entries = 0, rules = 0, draws = 0, groups = 0, slots_stride = 0;
    int64_t beam_draws = 0, most_beams = 0;
    const void* states = nullptr;
    const void* slots = nullptr;
    const void* lens = nullptr;
    auto operator<=>(const Shape&) const = default;
  };
  struct RecordedSearch {
    int64_t seen = 0;  // how often
    std::unique_ptr<DeviceGraph> graph;
  };

  void QueueOps(const Tensor& states, int which);
  void RunRecorded(const Tensor& states, int which);
  void PlanGeneration(const Searching& wanted, Search* search);
  void PlanRules(const Searching& wanted, int64_t rows, int64_t row, Needs* needs);
  void PlanRanking(const Searching& wanted, int64_t rows, Needs* needs);
  void PlanBeamSteps(const Generation& generation, int64_t rows, const SearchPart& part);
  void PlanDraws(const Searching& wanted, absl::Span<const int32_t> lanes, SearchPart* part);
  void PlanBeamDraw(const Searching& wanted, int64_t rows, const SearchPart& part);
  void FindAlternatives(const Search& search);
  void ApplyRules(const Search& search);
  void Rank(const Search& search, int which);
  void DrawTokens(const Search& search, int which);
  void DrawBeams(const Search& search, int which);
  void StepBeams(const Search& search, int which);
  Shape ShapeOf(const Tensor& states, int which) const;
  void FindLogits(const Search& search, int which);
  RowResults ResultsOf(const Chosen& chosen, int which) const;
  // What ops write and read of a mirrored buffer.
  Tensor Matrix(const Buffer& mirrored, DType dtype, int64_t rows, int64_t columns) const;
  Tensor Logits(int64_t rows) const;
  Tensor Kept(int64_t rows) const;
  Tensor LogSums(int64_t rows) const;
  Tensor Scratch(const Buffer& buffer) const;
  Tensor RowBiases(const Needs& needs) const;
  // The candidates of a search, as kernels write them on the host's side.
  Tensor Values(const Search& search, int which) const;
  Tensor Indices(const Search& search, int which) const;
  int64_t EntriesAt(int which) const;

  Model* const model_;
  const int64_t id_;  // no other search of the process has it: the model outlives this one
  const int64_t vocab_, logits_stride_, most_rows_;
  const bool runs_ahead_;
  Search searches_[2];
  std::map<Shape, RecordedSearch> recorded_;
  absl::Status status_;  // of the device

  RankingPlan plan_, alternatives_plan_;
  MirroredArray<RowRules> rules_;
  MirroredArray<int32_t> rule_tokens_;
  MirroredArray<Draw> draws_;
  MirroredArray<BeamDraw> beam_draws_;
  MirroredArray<BeamGroup> groups_;
  MirroredArray<int32_t> eos_, carried_;  // tokens of the groups; CarryScores' `from`
  // Of each entry of the ranking, then of each draw: its first row, and whether its raw logits are
  // those that were kept.
  MirroredArray<int32_t> entry_rows_, entry_kept_, draw_rows_, draw_kept_;

  // Of ops alone; [most rows, ..]: logits, raw logits of rows that rules change, scores of beams as
  // the latest BeamStep leaves them, and as the next ranking adds them.
  Buffer topk_scratch_, rules_scratch_, sample_scratch_, ranked_sums_, logits_, kept_;
  Buffer scores_, biases_;
  // Mirrored; [most rows, ..]: log-sum-exp of raw logits; twice for two searches, written by
  // kernels on the host's side: the candidates' values and indices, the draws; raw logits of the
  // candidates and of the draws; best alternatives.
  Buffer log_sums_, ranked_, ranked_indices_, drawn_;
  Buffer ranked_logits_, drawn_logits_, top_, top_indices_;
};

}  // namespace quintet
