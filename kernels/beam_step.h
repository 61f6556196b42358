// Beam search between two decoder steps, on the device: which beams go on, given the ranked
// candidates, and the next step's slot tables and scores. With these ops a step can be queued
// before the host has seen the one before it.
//
// engine/beam_search.h is the whole search, on the host. The parts that are only there (the pool of
// finished sequences, when the search ends) never change which beams go on.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

inline constexpr float kEndedBeam = -1e9f;  // added to a candidate whose token ends its sequence
inline constexpr int64_t kMostStepCandidates = 1024;  // most of k_max
inline constexpr int32_t kMostMovedBeams = 64;        // most of BeamMove::beams

// One request. Greedy decoding is a group of one beam with no tokens that end it.
struct BeamGroup {
  int32_t entry = 0;  // row of `values` and `indices` that holds its candidates
  int32_t row = 0;    // row of the first beam's results; the other beams' rows follow it
  int32_t beams = 1;
  int32_t eos_begin = 0, eos_end = 0;  // range of `eos`: tokens that end a sequence
};

// The beams of a group that go on are its `beams` best candidates, after kEndedBeam has been added
// to those whose token ends the sequence; equal ones keep the candidates' order. Where a group has
// fewer candidates than beams, the missing ones have score -inf, parent 0 and token 0.
struct BeamStepArgs {
  Tensor values;   // [entries, k_max] f32: score of the beam with the token
  Tensor indices;  // [entries, k_max] i32: beam * vocab + token; -1: no more candidates
  int64_t vocab = 0;
  absl::Span<const BeamGroup> groups;  // [n] mirrored
  absl::Span<const int32_t> eos;       // mirrored: token ids
  Tensor tokens, parents;              // [rows] i32 out: new token; beam of the group it continues
  Tensor scores;                       // [rows] f32 out
};
void BeamStep(const BeamStepArgs& args, Stream& stream);

// biases[r] = from[r] >= 0 ? scores[from[r]] : known[r]: the running scores that the next step's
// ranking adds, of a step still under way or as the host knows them.
struct CarryScoresArgs {
  Tensor scores;                   // [..] f32
  Tensor known;                    // [rows] f32
  absl::Span<const int32_t> from;  // [rows] mirrored
  Tensor biases;                   // [rows] f32 out
};
void CarryScores(const CarryScoresArgs& args, Stream& stream);

// The beams of one request in a step that follows a BeamStep.
struct BeamMove {
  int32_t sequence = 0;  // row of `slots` of the first beam; the other beams' rows follow it
  int32_t beams = 0;
  int32_t row = 0;  // element of `parents` of the first beam
};

// Beams move by their slot tables, keys and values stay: beam b of a move receives the slots of
// beam parents[row + b] of the same move, except for its last slot, that of the new token, which
// stays its own.
struct MoveBeamsArgs {
  const int32_t* slots = nullptr;  // [n, slots_stride] mirrored: the side that kernels read changes
  int64_t slots_stride = 0;
  absl::Span<const int32_t> lens;    // [n] mirrored: slots of each sequence; equal within a move
  absl::Span<const BeamMove> moves;  // mirrored
  Tensor parents;                    // [..] i32
};
void MoveBeams(const MoveBeamsArgs& args, Stream& stream);

}  // namespace quintet
