// Beam search of one request with Hugging Face's exact semantics (the vectorised search of
// transformers, 2025): running beams, pool of finished sequences, early stopping, length penalty.
// Works on ranked candidates and never sees logits. Not thread safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/options.h"

namespace quintet {

struct BeamCandidate {
  float score = 0.0f;  // running score of the beam + processed log-probability of the token
  int32_t beam = 0;
  int32_t token = 0;
  float log_prob = 0.0f;  // raw log-softmax of the token, for the result
};

enum class Hit : uint8_t { kNone, kEos, kStop, kLength };  // why a candidate ends its sequence

// A finished sequence.
struct BeamHypothesis {
  float score = -1e9f;  // divided by the length penalty
  bool finished = false;
  Hit hit = Hit::kNone;
  std::vector<int32_t> tokens;     // new tokens, eos included
  std::vector<float> log_probs;    // [tokens] raw log-softmax
  std::vector<int32_t> row_beams;  // [tokens] beam whose logits row chose the token
};

class BeamSearch {
 public:
  explicit BeamSearch(const DecodingOptions& options);

  int32_t beams() const { return beams_; }
  // K, the number of ranked candidates that Step takes: max(2, 1 + number of eos ids) * beams.
  int32_t candidates() const { return candidates_; }
  // Scores of the running (unfinished) beams, best first. Before the first step beam 0 has score 0
  // and all others have -1e9.
  std::span<const float> scores() const { return scores_; }

  // Completes `ranked` for the first step, in which all beams are still equal and only beam 0 has a
  // row of logits. On entry `ranked` holds the best K = candidates() candidates of that row, best
  // first. If some of them have score -inf or there are fewer than K, this function adds copies of
  // the candidates for every other beam, with -1e9 added to their scores, moves the candidates with
  // score -inf to the end, and keeps the first K. Hugging Face's search ranks the same candidates.
  void CompleteFirst(std::vector<BeamCandidate>* ranked) const;

  // Runs one step. `ranked`: the best K = candidates() continuations of the running beams, best
  // first; in beam sampling instead K drawn continuations, in the order of the draws. If fewer than
  // K exist, `ranked` has all of them, but at least beams(). `hits[k]`: whether candidate k ends
  // its sequence, and why. Returns false when the search has ended.
  bool Step(std::span<const BeamCandidate> ranked, std::span<const Hit> hits);

  // After Step: the parent beam and the new token of each running beam, best first.
  std::span<const int32_t> parents() const { return parents_; }
  std::span<const int32_t> tokens() const { return tokens_; }

  // Returns the finished hypotheses, best first, without the dead ones. A dead hypothesis continues
  // a beam that had already ended or did not exist yet and has a score near -1e9 (Hugging Face
  // returns those). If all finished hypotheses are dead, returns only the best one.
  std::vector<BeamHypothesis> Finished() const;
  // Number of steps so far. This is also the number of new tokens of every running beam.
  int64_t new_tokens() const { return new_tokens_; }
  // Returns the number of new tokens in the common prefix of all running beams and all finished
  // sequences; every result begins with that prefix. `known`: an earlier return value, or 0. The
  // prefix never becomes shorter; hence its first `known` tokens are not compared again.
  int64_t CommonLength(int64_t known) const;

 private:
  // The token of one running beam at one step. `parent` is the beam of the previous step that this
  // beam extends; following the parents backwards gives all tokens of the beam.
  struct Node {
    int32_t token, parent;
    float log_prob;
  };
  struct Slot {
    float score = -1e9f;
    bool finished = false;
    bool dead = false;  // continues an ended or dead beam, or has an impossible token
    Hit hit = Hit::kNone;
    int64_t step = 0;  // index of its last token
    Node last{};
  };

  void ChooseRunning(std::span<const BeamCandidate> ranked, std::span<const Hit> hits);
  void UpdateFinished(std::span<const BeamCandidate> ranked, std::span<const Hit> hits);
  bool PoolFull() const;
  void UpdateOpen();

  int32_t beams_, candidates_, pool_size_;
  double length_penalty_;
  EarlyStopping early_stopping_;
  int64_t max_new_tokens_;
  int64_t new_tokens_ = 0;  // generated so far by every running beam
  bool open_ = true;
  std::vector<float> scores_;
  std::vector<int32_t> parents_, tokens_;
  std::vector<Node> nodes_;  // [new_tokens, beams]
  std::vector<Slot> pool_, merged_;
  std::vector<std::pair<float, int32_t>> order_;
};

}  // namespace quintet
