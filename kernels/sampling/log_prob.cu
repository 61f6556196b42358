// Log-probabilities of targets on a GPU, in chunks of rows. The GEMM with the language-model head
// writes the logits of a chunk to scratch memory of bounded size; the kernels of selection.cu
// compute their log-sum-exp and top-k; then the next chunk overwrites the logits.
#include <algorithm>

#include "kernels/base/carver.h"
#include "kernels/cuda_ops.h"
#include "kernels/sampling/selection.cuh"

namespace quintet::cuda {
namespace {

// Upper bounds of a chunk of rows: the bytes of its logits, and its number of rows. With a
// vocabulary of 32,128, 512 rows are within both. A GEMM of 512 rows is compute bound, so rereading
// the weights of the language-model head for each chunk costs little.
constexpr int64_t kLogitBytes = int64_t{64} << 20;
constexpr int64_t kMaxChunkRows = 512;
constexpr int kThreads = 256;

int64_t ChunkRows(const WeightView& head, int64_t rows) {
  const int64_t fit = std::max<int64_t>(1, kLogitBytes / (4 * LogitsStride(head.n())));
  return std::min({rows, fit, kMaxChunkRows});
}

struct Scratch {
  Tensor logits;    // [chunk rows, vocab] f32, row stride LogitsStride(vocab)
  Tensor product;   // scratch of Linear, [bytes] i8
  void* summaries;  // memory of RowSummaries
  Tensor values;    // [chunk rows, top] f32
  Tensor indices;   // [chunk rows, top] i32
  int64_t bytes;
};

Scratch Carve(void* base, const WeightView& head, int64_t rows, int64_t top,
              const CudaStream& stream) {
  const int64_t chunk = ChunkRows(head, rows), vocab = head.n();
  Carver carver(base);
  Scratch s;
  s.logits = carver.TakeTensor(DType::kF32, {chunk, LogitsStride(vocab)}).Columns(0, vocab);
  s.product = carver.TakeTensor(DType::kI8, {cuda::LinearScratchBytes(head, chunk, stream)});
  s.summaries = carver.Take(RowSummaries(nullptr, chunk, vocab).bytes);
  s.values = carver.TakeTensor(DType::kF32, {chunk, top});
  s.indices = carver.TakeTensor(DType::kI32, {chunk, top});
  s.bytes = carver.used_bytes();
  return s;
}

// Arguments of LogProbKernel, for one chunk of rows.
struct LogProbParams {
  LogitRows logits;
  const TileSum* sums;     // [rows, tiles]
  const int32_t* targets;  // [rows]
  int64_t targets_stride;
  float* log_probs;
  int64_t log_probs_stride;
  int top;
  const float* values;     // [rows, top] the best logits, descending
  const int32_t* indices;  // [rows, top]
  float* top_log_probs;
  int64_t top_log_probs_stride[2];
  int32_t* top_tokens;
  int64_t top_tokens_stride[2];
};

// log_probs[row] = (logits[row, target] - max) - log(sum); the same for the `top` best tokens,
// ordered by log-probability descending, then token ascending.
// Shapes (one chunk of rows): logits [rows, vocab]; log_probs [rows]; top_log_probs, top_tokens
// [rows, top].
// Numerics: differences and logarithm in f64, rounded once to f32. A target outside the
// vocabulary is not read and gives NaN.
// Mapping: one warp per row; each lane handles every 32nd of the best tokens and computes its
// output position by counting the tokens that rank before it.
// Bound: latency; a few hundred bytes per row.
// Test: tests/kernels/sampling/log_prob_test.cc.
__global__ void __launch_bounds__(kThreads) LogProbKernel(const __grid_constant__ LogProbParams a) {
  WaitOnDependentGrids();
  const int64_t row = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  if (row >= a.logits.rows) return;
  const RowSum total = MergeTiles(a.sums + row * a.logits.tiles, a.logits.tiles);
  const double log_sum = log(total.sum);
  const auto log_prob = [&](float logit) {
    return static_cast<float>((static_cast<double>(logit) - static_cast<double>(total.max)) -
                              log_sum);
  };
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) {
    const int target = a.targets[row * a.targets_stride];
    const bool exists = target >= 0 && target < a.logits.vocab;
    a.log_probs[row * a.log_probs_stride] =
        log_prob(exists ? a.logits.x[row * a.logits.stride + target] : __int_as_float(0x7fffffff));
  }
  const float* values = a.values + row * a.top;
  const int32_t* tokens = a.indices + row * a.top;
  for (int i = lane; i < a.top; i += 32) {
    const float own = log_prob(values[i]);
    int position = i;  // padding (token -1) keeps its position
    if (tokens[i] >= 0) {
      const unsigned key = KeyOf(own);
      position = 0;
      for (int j = 0; j < a.top && tokens[j] >= 0; ++j) {
        const unsigned other = KeyOf(log_prob(values[j]));
        position += other > key || (other == key && tokens[j] < tokens[i]);
      }
    }
    a.top_log_probs[row * a.top_log_probs_stride[0] + position * a.top_log_probs_stride[1]] =
        tokens[i] >= 0 ? own : kMinusInf;
    a.top_tokens[row * a.top_tokens_stride[0] + position * a.top_tokens_stride[1]] = tokens[i];
  }
}

// Enqueues the GEMM, the selection kernels and LogProbKernel for rows [begin, end) of the call.
void RunChunk(const TargetLogProbArgs& args, const Scratch& scratch, int64_t begin, int64_t end,
              CudaStream& stream) {
  const int64_t rows = end - begin;
  LinearArgs product;
  product.x = args.hidden.Rows(begin, end);
  product.w = args.head;
  product.bias = args.bias;
  product.alpha = args.alpha;
  product.y = scratch.logits.Rows(0, rows);
  if (scratch.product.elements() > 0) product.scratch = scratch.product;
  cuda::Linear(product, stream);

  const int top = args.top_tokens.defined() ? static_cast<int>(args.top_tokens.dim[1]) : 0;
  RankParams ranking{.logits = MakeLogitRows(product.y),
                     .summaries = RowSummaries(scratch.summaries, rows, args.head->n())};
  ranking.requests = {.n = static_cast<int>(rows), .k_each = top};
  ranking.values = scratch.values.as<float>();
  ranking.values_stride = top;
  ranking.indices = scratch.indices.as<int32_t>();
  ranking.indices_stride = top;
  ranking.k_max = top;
  SummarizeRows(ranking.logits, ranking.requests, /*want_sums=*/true, ranking.summaries, stream);
  if (top > 0) RankRows(ranking, stream);

  const Tensor& log_probs = args.top_log_probs;
  const Tensor& tokens = args.top_tokens;
  LogProbParams params{
      .logits = ranking.logits,
      .sums = ranking.summaries.sums,
      .targets = stream.DevicePtr(args.targets.as<int32_t>()) + begin * args.targets.stride[0],
      .targets_stride = args.targets.stride[0],
      .log_probs = args.log_probs.as<float>() + begin * args.log_probs.stride[0],
      .log_probs_stride = args.log_probs.stride[0],
      .top = top,
      .values = ranking.values,
      .indices = ranking.indices};
  if (top > 0) {
    params.top_log_probs = log_probs.as<float>() + begin * log_probs.stride[0];
    params.top_tokens = tokens.as<int32_t>() + begin * tokens.stride[0];
    for (int i = 0; i < 2; ++i) {
      params.top_log_probs_stride[i] = log_probs.stride[i];
      params.top_tokens_stride[i] = tokens.stride[i];
    }
  }
  Launch(stream, dim3(static_cast<unsigned>((rows + kThreads / 32 - 1) / (kThreads / 32))),
         dim3(kThreads), 0, LogProbKernel, params);
}

}  // namespace

int64_t TargetLogProbScratchBytes(const WeightView& head, int64_t rows, int64_t top,
                                  const CudaStream& stream) {
  return Carve(nullptr, head, rows, top, stream).bytes;
}

void TargetLogProb(const TargetLogProbArgs& args, CudaStream& stream) {
  const int64_t rows = args.hidden.dim[0];
  const int64_t top = args.top_tokens.defined() ? args.top_tokens.dim[1] : 0;
  const Scratch scratch = Carve(args.scratch.data, *args.head, rows, top, stream);
  const int64_t chunk = ChunkRows(*args.head, rows);
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    RunChunk(args, scratch, begin, std::min(rows, begin + chunk), stream);
  }
}

}  // namespace quintet::cuda
