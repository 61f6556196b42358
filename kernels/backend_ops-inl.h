// Declares the functions that every backend implements: one per public op and one per scratch-size
// or capability query. The op's public header documents each of them. cpu_ops.h and cuda_ops.h
// include this file inside their namespaces, so both backends declare the same ops with the same
// signatures. Executor is what a backend runs on: cpu::Executor is the ThreadPool of the Stream,
// cuda::Executor its CudaStream. Do not include this file anywhere else.

void RmsNorm(const RmsNormArgs& args, Executor& executor);
void LayerNorm(const LayerNormArgs& args, Executor& executor);
void RmsNormSums(const RmsNormSumsArgs& args, Executor& executor);
void Embedding(const EmbeddingArgs& args, Executor& executor);
void PoolRows(const PoolRowsArgs& args, Executor& executor);
void Rotary(const RotaryArgs& args, Executor& executor);
void StoreKv(const StoreKvArgs& args, Executor& executor);
void Attention(const AttentionArgs& args, Executor& executor);
int64_t AttentionScratchBytes(int64_t rows, int64_t heads, int64_t head_dim,
                              const Executor& executor);
void Linear(const LinearArgs& args, Executor& executor);
bool SupportsFusedNorm(const LinearArgs& args, const Executor& executor);
bool SupportsKvStore(const WeightView& w, int64_t rows, const Executor& executor);
bool SupportsLora(const LinearArgs& args, const Executor& executor);
int64_t LoraCopyBytes(const WeightView& w, const Executor& executor);
int64_t SplitNormParts(const WeightView& w, int64_t rows, const Executor& executor);
bool SupportsSplitNormInput(const WeightView& w, int64_t rows, const Executor& executor);
int64_t LinearScratchBytes(const WeightView& w, int64_t rows, const Executor& executor);
void AddLora(const AddLoraArgs& args, Executor& executor);
bool SupportsMergeLora(const WeightView& w, const LoraWeight& lora, const Executor& executor);
void MergeLora(const MergeLoraArgs& args, Executor& executor);
void LogSumExp(const LogSumExpArgs& args, Executor& executor);
void TopK(const TopKArgs& args, Executor& executor);
int64_t TopKScratchBytes(int64_t rows, int64_t vocab, int64_t k_max, const Executor& executor);
void ApplyLogitsProcessors(const LogitsProcessorsArgs& args, Executor& executor);
int64_t LogitsProcessorsScratchBytes(int64_t vocab, const Executor& executor);
void CandidateLogits(const CandidateLogitsArgs& args, Executor& executor);
void Sample(const SampleArgs& args, Executor& executor);
int64_t SampleScratchBytes(int64_t vocab, const Executor& executor);
void SampleBeams(const SampleBeamsArgs& args, Executor& executor);
int64_t SampleBeamsScratchBytes(int64_t rows, int64_t vocab, int64_t k_max,
                                const Executor& executor);
void BeamStep(const BeamStepArgs& args, Executor& executor);
void GatherScores(const GatherScoresArgs& args, Executor& executor);
void ReorderBeams(const ReorderBeamsArgs& args, Executor& executor);
void TargetLogProb(const TargetLogProbArgs& args, Executor& executor);
int64_t TargetLogProbScratchBytes(const WeightView& head, int64_t rows, int64_t top,
                                  const Executor& executor);
