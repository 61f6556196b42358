#include <limits>

#include "kernels/cuda_ops.h"
#include "kernels/runtime/cuda.cuh"

namespace quintet::cuda {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr int kThreads = 512;

// Kernel arguments: the arrays of LogitsProcessorsArgs, as addresses in device memory.
struct LogitsProcessorsParams {
  float* logits;
  int64_t stride;
  int vocab;
  const RowRules* rules;
  const int32_t* tokens;          // LogitsProcessorsArgs::tokens
  const int32_t* history_tokens;  // token id by cache slot
  const int32_t* slots;
  int64_t slots_stride;
  const int32_t* lens;
  const float* log_sums;
  float* raw_logits;
  int64_t raw_logits_stride;
};

// One row of logits, processed by one block. The member functions do not synchronize: the caller
// must call __syncthreads() before another thread reads what a function wrote.
class RuledRow {
 public:
  __device__ RuledRow(const LogitsProcessorsParams& call, const RowRules& rules)
      : call_(call),
        rules_(rules),
        row_(call.logits + rules.row * call.stride),
        length_(call.lens[rules.sequence]),
        slots_(call.slots + rules.sequence * call.slots_stride) {}

  __device__ void CopyTo(float* to) const {
    for (int i = first(); i < call_.vocab; i += kThreads) to[i] = row_[i];
  }
  __device__ void Fill(float value) const {
    for (int i = first(); i < call_.vocab; i += kThreads) row_[i] = value;
  }
  __device__ void Shift(float by) const {
    for (int i = first(); i < call_.vocab; i += kThreads) row_[i] = __fsub_rn(row_[i], by);
  }
  __device__ void Set(const TokenRange& tokens, float value) const {
    for (int i = tokens.begin + first(); i < tokens.end; i += kThreads) {
      row_[call_.tokens[i]] = value;
    }
  }

  // `seen` is a bitmap of the vocabulary in shared memory, initially 0. The thread that sets the
  // bit of a token applies the penalty, so a repeated token is penalized once.
  __device__ void Penalize(unsigned* seen) const {
    const float penalty = rules_.repetition_penalty;
    for (int i = first(); i < length_; i += kThreads) {
      const int token = Token(i);
      const unsigned bit = 1u << (token % 32);
      if ((atomicOr(&seen[token / 32], bit) & bit) != 0) continue;
      const float x = row_[token];
      row_[token] = x < 0.0f ? __fmul_rn(x, penalty) : __fdiv_rn(x, penalty);
    }
  }

  __device__ void BanRepeatedNgrams() const {
    const int n = rules_.ngram, suffix = length_ + 1 - n;
    for (int i = first(); i + n <= length_; i += kThreads) {
      int same = 0;
      while (same < n - 1 && Token(i + same) == Token(suffix + same)) ++same;
      if (same == n - 1) row_[Token(i + n - 1)] = kMinusInf;
    }
  }

  __device__ void BanWords() const {
    const int32_t* base = call_.tokens + rules_.words.begin;
    const int words = (rules_.words.end - rules_.words.begin) / 2;
    for (int w = first(); w < words; w += kThreads) {
      const int32_t* word = base + base[2 * w];
      const int before = base[2 * w + 1] - base[2 * w] - 1;
      if (before > length_) continue;
      int same = 0;
      while (same < before && Token(length_ - before + same) == word[same]) ++same;
      if (same == before) row_[word[before]] = kMinusInf;
    }
  }

 private:
  __device__ static int first() { return static_cast<int>(threadIdx.x); }
  __device__ int Token(int i) const { return call_.history_tokens[slots_[i]]; }

  const LogitsProcessorsParams& call_;
  const RowRules& rules_;
  float* row_;
  int length_;
  const int32_t* slots_;
};

// Applies the rules of LogitsProcessorsArgs to the logits.
// Shapes: logits [rows, vocab] f32, in place; the tokens of each sequence are read by KV-cache slot
// (token_history.h).
// Numerics: f32, one rounding per rule. If several threads write one logit, they write equal
// values.
// Mapping: one block per row that has rules; shared memory holds one bit per vocabulary entry.
// Bound: latency of three dependent reads per rule that uses the history. Forced tokens and
// log_softmax write the whole row, vocab * 4 bytes.
// Test: tests/kernels/sampling/logits_processors_test.cc.
__global__ void __launch_bounds__(kThreads)
    LogitsProcessorsKernel(const __grid_constant__ LogitsProcessorsParams c) {
  extern __shared__ unsigned seen[];
  WaitOnDependentGrids();
  const RowRules rules = c.rules[blockIdx.x];
  const RuledRow row(c, rules);
  if (rules.keep != 0) {
    row.CopyTo(c.raw_logits + rules.row * c.raw_logits_stride);
    __syncthreads();
  }
  if (!rules.forced.empty()) {
    row.Fill(kMinusInf);
    __syncthreads();
    row.Set(rules.forced, 0.0f);
    __syncthreads();
  } else {
    if (rules.repetition_penalty != 1.0f) {
      for (int i = static_cast<int>(threadIdx.x); i < (c.vocab + 31) / 32; i += kThreads) {
        seen[i] = 0;
      }
    }
    if (rules.log_softmax != 0) row.Shift(c.log_sums[rules.row]);
    __syncthreads();
    if (rules.repetition_penalty != 1.0f) {
      row.Penalize(seen);
      __syncthreads();
    }
    if (rules.ngram > 0) row.BanRepeatedNgrams();
    row.BanWords();
  }
  row.Set(rules.banned, kMinusInf);
}

}  // namespace

void ApplyLogitsProcessors(const LogitsProcessorsArgs& args, CudaStream& stream) {
  if (args.rules.empty()) return;
  const TokenHistory& history = args.history;
  const int vocab = static_cast<int>(args.logits.dim[1]);
  const LogitsProcessorsParams call{
      args.logits.as<float>(),
      args.logits.stride[0],
      vocab,
      stream.DevicePtr(args.rules.data()),
      args.tokens.empty() ? nullptr : stream.DevicePtr(args.tokens.data()),
      history.tokens.as<int32_t>(),
      stream.DevicePtr(history.slots),
      history.slots_stride,
      stream.DevicePtr(history.lens.data()),
      args.log_sums.as<float>(),
      args.raw_logits.as<float>(),
      args.raw_logits.stride[0]};
  const size_t shared = static_cast<size_t>((vocab + 31) / 32) * 4;
  Launch(stream, dim3(static_cast<unsigned>(args.rules.size())), dim3(kThreads), shared,
         LogitsProcessorsKernel, call);
}

int64_t LogitsProcessorsScratchBytes(int64_t, const CudaStream&) { return 0; }

}  // namespace quintet::cuda
