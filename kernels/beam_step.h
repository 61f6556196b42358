// What beam search needs between two steps where nobody waits for the host: each request's running
// beams follow from its candidates (engine/beam_search.h is the whole search), the next step's
// tables of slots and scores follow from the beams. The rest of a search, its finished sequences
// and when it ends, never changes what runs on.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

inline constexpr float kEndedBeam = -1e9f;  // what a candidate that ends its sequence gets added
inline constexpr int64_t kMostStepCandidates = 1024;
inline constexpr int32_t kMostMovedBeams = 64;

// A request's beams in a ranking. One that goes greedily is a group of one beam that no token ends.
struct BeamGroup {
  int32_t entry = 0;  // of the candidates
  int32_t row = 0;    // of the first beam's results; the others' follow
  int32_t beams = 1;
  int32_t eos_begin = 0, eos_end = 0;  // its tokens that end a sequence
};

// Each group's running beams: of its candidates, -1e9 added to those that end, the `beams`
// greatest, equal ones in the candidates' order. Where candidates are fewer than beams, others of
// score -inf, beam 0 and token 0 follow them.
struct BeamStepArgs {
  Tensor values;   // [entries, k_max] f32: running score with the token
  Tensor indices;  // [entries, k_max] i32: beam * vocab + token; -1: no more
  int64_t vocab = 0;
  absl::Span<const BeamGroup> groups;  // [n] mirrored
  absl::Span<const int32_t> eos;       // mirrored
  Tensor tokens, parents;              // [rows] i32 out: the new token, and the beam it continues
  Tensor scores;                       // [rows] f32 out
};
void BeamStep(const BeamStepArgs& args, Stream& stream);

// biases[r] = scores[from[r]] where from[r] is not below 0, otherwise known[r].
struct CarryScoresArgs {
  Tensor scores;                   // [..] f32
  Tensor known;                    // [rows] f32
  absl::Span<const int32_t> from;  // [rows] mirrored
  Tensor biases;                   // [rows] f32 out
};
void CarryScores(const CarryScoresArgs& args, Stream& stream);

// Beams of one request, sequences of a step, that follow from a BeamStep.
struct BeamMove {
  int32_t sequence = 0;  // of the first beam; the others follow
  int32_t beams = 0;
  int32_t row = 0;  // of the first beam's parent
};

// Every sequence of a move takes the slots of the one that it continues, parents[row + beam] of the
// same move, but for the last: the new token's is its own.
struct MoveBeamsArgs {
  const int32_t* slots = nullptr;  // [n, slots_stride] mirrored: what ops read of it is changed
  int64_t slots_stride = 0;
  absl::Span<const int32_t> lens;    // [n] mirrored: of each sequence; alike within a move
  absl::Span<const BeamMove> moves;  // mirrored
  Tensor parents;                    // [..] i32
};
void MoveBeams(const MoveBeamsArgs& args, Stream& stream);

}  // namespace quintet
