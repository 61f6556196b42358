// The part of beam search between two decoder steps, as device ops: from the ranked candidates they
// select the beams that continue, and they update the scores and slot tables of the next step. With
// these ops the next step can be enqueued before the host has read the results of the current one.
//
// engine/beam_search.h implements the complete search on the host. The parts that exist only on the
// host (the pool of finished hypotheses, the stopping rule) do not affect which beams continue.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/tensor.h"

namespace quintet {

class Stream;  // kernels/runtime/stream.h

// Added to the score of a candidate whose token is an EOS token, so that it ranks below every
// candidate with another token.
inline constexpr float kEosPenalty = -1e9f;
inline constexpr int64_t kMaxStepCandidates = 1024;  // upper bound of BeamStepArgs k_max
inline constexpr int32_t kMaxReorderedBeams = 64;    // upper bound of BeamMove::beams

// A group: the beams of one request. In greedy decoding every row is a group of one beam without
// EOS tokens (eos_begin == eos_end).
struct BeamGroup {
  int32_t entry = 0;  // row of `values` and `indices` that holds the candidates of the group
  int32_t row = 0;    // row of the results of the first beam; the other beams follow it
  int32_t beams = 1;
  int32_t eos_begin = 0, eos_end = 0;  // EOS tokens of the group: eos[eos_begin, eos_end)
};

// Selects the `beams` best candidates of each group. kEosPenalty is first added to the score of
// each candidate whose token is an EOS token; candidates of equal score keep their order. If a
// group has fewer candidates than beams, the missing beams get score -inf, parent 0 and token 0.
//
// The std::span members are pinned host arrays with a device copy (kernels/runtime/stream.h).
struct BeamStepArgs {
  Tensor values;   // [entries, k_max] f32: score of the beam extended by the token
  Tensor indices;  // [entries, k_max] i32: beam * vocab + token; -1: no more candidates
  int64_t vocab = 0;
  std::span<const BeamGroup> groups;  // [n]
  std::span<const int32_t> eos;       // token ids; BeamGroup selects a range
  // [rows] i32 out. tokens: the last token of each new beam. parents: the beam that the new beam
  // extends, as an index within the beams of the same request (0 is the request's first beam).
  Tensor tokens, parents;
  Tensor scores;  // [rows] f32 out
};
void BeamStep(const BeamStepArgs& args, Stream& stream);

// biases[r] = from[r] >= 0 ? scores[from[r]] : known[r]
//
// Gathers the running scores that TopK or SampleBeams of the next step adds to its rows, from the
// device results of a step that is still in flight or from values that the host knows.
struct GatherScoresArgs {
  Tensor scores;                  // [..] f32: BeamStepArgs::scores of the previous step
  Tensor known;                   // [rows] f32: scores from the host
  std::span<const int32_t> from;  // [rows], pinned + device copy
  Tensor biases;                  // [rows] f32 out
};
void GatherScores(const GatherScoresArgs& args, Stream& stream);

// The beams of one request whose slot tables ReorderBeams permutes after a BeamStep.
struct BeamMove {
  int32_t sequence = 0;  // row of `slots` of the first beam; the other beams follow it
  int32_t beams = 0;
  int32_t row = 0;  // element of `parents` of the first beam
};

// Reorders beams by permuting their KV-cache slot tables; cached keys and values are not copied.
// Each BeamMove describes the beams of one request. New beam b gets the slots of old beam
// parents[BeamMove::row + b] of the same request, except for the last position: its slot belongs to
// the new token of beam b and stays in the table of beam b.
//
// The std::span members are pinned host arrays with a device copy (kernels/runtime/stream.h).
struct ReorderBeamsArgs {
  // Slot tables [n, slots_stride] of n beams: element [b, i] is the KV-cache slot of token i of
  // beam b. Pinned host array with a device copy; on a GPU only the device copy is changed.
  const int32_t* slots = nullptr;
  int64_t slots_stride = 0;
  std::span<const int32_t> lens;    // [n]: slots per sequence; equal within a move
  std::span<const BeamMove> moves;  // any number
  Tensor parents;                   // [..] i32: BeamStepArgs::parents of the previous step
};
void ReorderBeams(const ReorderBeamsArgs& args, Stream& stream);

}  // namespace quintet
