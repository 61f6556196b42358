// Declares the functions that every backend implements: one per public op and one per scratch-size
// or capability query. The op's public header documents each of them. cpu_ops.h and cuda_ops.h
// include this file inside their namespaces, so both backends declare the same ops with the same
// signatures. Do not include it anywhere else.

void RmsNorm(const RmsNormArgs& args, Stream& stream);
void LayerNorm(const LayerNormArgs& args, Stream& stream);
void Embedding(const EmbeddingArgs& args, Stream& stream);
void PoolRows(const PoolRowsArgs& args, Stream& stream);
void Rotary(const RotaryArgs& args, Stream& stream);
void StoreKv(const StoreKvArgs& args, Stream& stream);
void Attention(const AttentionArgs& args, Stream& stream);
int64_t AttentionScratchBytes(int64_t rows, int64_t heads, int64_t head_dim, const Stream& stream);
void Linear(const LinearArgs& args, Stream& stream);
bool SupportsFusedNorm(const LinearWeight& w, int64_t rows);
bool SupportsKvStore(const LinearWeight& w, int64_t rows, const Stream& stream);
bool SupportsLora(const LinearArgs& args, const Stream& stream);
int64_t LoraCopyBytes(const LinearWeight& w);
int64_t SplitNormParts(const LinearWeight& w, int64_t rows, const Stream& stream);
bool SupportsSplitNormInput(const LinearWeight& w, int64_t rows, const Stream& stream);
int64_t LinearScratchBytes(const LinearWeight& w, int64_t rows, const Stream& stream);
void AddLora(const AddLoraArgs& args, Stream& stream);
void LogSumExp(const LogSumExpArgs& args, Stream& stream);
void TopK(const TopKArgs& args, Stream& stream);
int64_t TopKScratchBytes(int64_t rows, int64_t vocab, int64_t k_max, const Stream& stream);
void ApplyLogitsProcessors(const LogitsProcessorsArgs& args, Stream& stream);
int64_t LogitsProcessorsScratchBytes(int64_t vocab, const Stream& stream);
void CandidateLogits(const CandidateLogitsArgs& args, Stream& stream);
void Sample(const SampleArgs& args, Stream& stream);
int64_t SampleScratchBytes(int64_t vocab, const Stream& stream);
void SampleBeams(const SampleBeamsArgs& args, Stream& stream);
int64_t SampleBeamsScratchBytes(int64_t rows, int64_t vocab, int64_t k_max, const Stream& stream);
void BeamStep(const BeamStepArgs& args, Stream& stream);
void GatherScores(const GatherScoresArgs& args, Stream& stream);
void ReorderBeams(const ReorderBeamsArgs& args, Stream& stream);
void TargetLogProb(const TargetLogProbArgs& args, Stream& stream);
int64_t TargetLogProbScratchBytes(const LinearWeight& head, int64_t rows, int64_t top,
                                  const Stream& stream);
