// The ops on a GPU, with the contracts of their public headers: arguments have been checked,
// Tensors are device memory, spans and index Tensors mirrored memory (kernels/stream.h). Launchers
// queue kernels; they never copy, allocate or wait, so that a step can be captured as a graph.
// Lengths are read from twins by the kernels: on the host they are upper bounds that size the
// launches.
#pragma once

#include "kernels/attention.h"
#include "kernels/beam_sampling.h"
#include "kernels/beam_step.h"
#include "kernels/candidate_logits.h"
#include "kernels/device.h"
#include "kernels/embedding.h"
#include "kernels/kv_cache.h"
#include "kernels/linear.h"
#include "kernels/log_prob.h"
#include "kernels/logit_rules.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "kernels/sampling.h"
#include "kernels/selection.h"
#include "kernels/stream.h"

namespace quintet::cuda {

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(int ordinal);

void RmsNorm(const RmsNormArgs& args, Stream& stream);
void LayerNorm(const LayerNormArgs& args, Stream& stream);
void Embedding(const EmbeddingArgs& args, Stream& stream);
void Rotary(const RotaryArgs& args, Stream& stream);
void StoreKv(const StoreKvArgs& args, Stream& stream);
void Attention(const AttentionArgs& args, Stream& stream);
int64_t AttentionScratchBytes(int64_t rows, int64_t heads, int64_t head_dim, const Stream& stream);
void LogSumExp(const LogSumExpArgs& args, Stream& stream);
void TopK(const TopKArgs& args, Stream& stream);
int64_t TopKScratchBytes(int64_t rows, int64_t vocab, int64_t k_max, const Stream& stream);
void LogitRules(const LogitRulesArgs& args, Stream& stream);
int64_t LogitRulesScratchBytes(int64_t vocab, const Stream& stream);
void CandidateLogits(const CandidateLogitsArgs& args, Stream& stream);
void Sample(const SampleArgs& args, Stream& stream);
int64_t SampleScratchBytes(int64_t vocab, const Stream& stream);
void SampleBeams(const SampleBeamsArgs& args, Stream& stream);
int64_t SampleBeamsScratchBytes(int64_t rows, int64_t vocab, int64_t k_max, const Stream& stream);
void BeamStep(const BeamStepArgs& args, Stream& stream);
void CarryScores(const CarryScoresArgs& args, Stream& stream);
void MoveBeams(const MoveBeamsArgs& args, Stream& stream);
void Linear(const LinearArgs& args, Stream& stream);
bool LinearTakesNorm(const LinearWeight& w, int64_t rows);
bool LinearStoresKv(const LinearWeight& w, int64_t rows, const Stream& stream);
int64_t LinearNormParts(const LinearWeight& w, int64_t rows, const Stream& stream);
bool LinearTakesSquares(const LinearWeight& w, int64_t rows, const Stream& stream);
int64_t LinearScratchBytes(const LinearWeight& w, int64_t rows, const Stream& stream);
void TargetLogProb(const TargetLogProbArgs& args, Stream& stream);
int64_t TargetLogProbScratchBytes(const LinearWeight& head, int64_t rows, int64_t top,
                                  const Stream& stream);

}  // namespace quintet::cuda
