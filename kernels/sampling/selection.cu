// Log-sum-exp and exact top-k on a GPU, by retrieve-and-rerank as in selection_cpu.cc. Phase one
// (SummaryKernel) reads the logits once and stores the maximum of every group of 128 consecutive
// tokens and, optionally, sums of exponentials. Phase two (RankKernel) finds the k best values of
// each request; a request consists of one or more consecutive rows. It derives a lower bound of the
// request's k-th best value from the maxima, rereads only the groups whose maximum reaches the
// bound, and ranks the values found there.
//
// Results of a row do not depend on the other rows of the launch: how a row is split into tiles,
// and the order in which its exponentials are added, depend only on the vocabulary size.
#include "kernels/base/carver.h"
#include "kernels/sampling/selection.cuh"

#include <algorithm>

#include "kernels/cuda_ops.h"

namespace quintet::cuda {
namespace {

constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr int kSummaryThreads = 256;
// Threads per block of RankKernel: kSmallBlock if k_max <= kSmallK, otherwise kLargeBlock.
constexpr int kSmallBlock = 256, kLargeBlock = 1024;
constexpr int kSmallK = 64;
// Capacity of the candidate buffer of one request. k is at most half of the capacity, because more
// than k values can reach the lower bound of the k-th best value. If more values reach it than the
// buffer holds, SelectExactly is used.
constexpr int kMaxCandidates = 2048;

// Loads a group of 128 logits that begins at column `begin`: lane l gets values 4 l to 4 l + 3. The
// values past the end of the row are -inf.
__device__ __forceinline__ void LoadGroup(const LogitRows& logits, int64_t row, int begin,
                                          float (&values)[4]) {
  const int at = begin + static_cast<int>(threadIdx.x) % 32 * 4;
  const float* x = logits.x + row * logits.stride + at;
  if (logits.vectors && at + 4 <= logits.vocab) {
    LoadVector(x, values);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = at + i < logits.vocab ? x[i] : kMinusInf;
  }
}

// Summary of one tile (512 tokens) of a row, computed by one warp: the maximum of each group of 128
// tokens and, if kSums, the contribution of the tile to the log-sum-exp (TileSum).
struct TileSummary {
  float maxima[kTileGroups];
  TileSum sum;
};

template <bool kSums>
__device__ __forceinline__ TileSummary Summarize(const LogitRows& logits, int64_t row, int tile) {
  float values[kTileGroups][4];
#pragma unroll
  for (int g = 0; g < kTileGroups; ++g) {
    LoadGroup(logits, row, tile * kTile + g * kGroup, values[g]);
  }
  TileSummary out;
  unsigned max_key = 0;
#pragma unroll
  for (int g = 0; g < kTileGroups; ++g) {
    const float(&v)[4] = values[g];
    const unsigned key =
        __reduce_max_sync(kWholeWarp, KeyOf(fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3]))));
    out.maxima[g] = ValueOf(key);
    max_key = max(max_key, key);
  }
  if constexpr (kSums) {
    out.sum.max = ValueOf(max_key);
    const float reference = out.sum.max == kMinusInf ? 0.0f : out.sum.max;
    float sum[kTileGroups];
#pragma unroll
    for (int g = 0; g < kTileGroups; ++g) {
      const float(&v)[4] = values[g];
      sum[g] = (expf(v[0] - reference) + expf(v[1] - reference)) +
               (expf(v[2] - reference) + expf(v[3] - reference));
    }
    out.sum.sum = WarpSum((sum[0] + sum[1]) + (sum[2] + sum[3]));
  }
  return out;
}

// Returns the log-sum-exp of a row; +inf if a logit is +inf.
__device__ __forceinline__ float LogOf(const RowSum& sum) {
  if (sum.max == -kMinusInf) return sum.max;
  return static_cast<float>(static_cast<double>(sum.max) + log(sum.sum));
}

// Phase one: maxima[row, group] = maximum of each group of 128 tokens, and, if kSums,
// sums[row, tile] = (max, sum of exp(logit - max)) of each tile of 512 tokens.
// Shapes: logits [rows, vocab] f32, maxima [rows, tiles * 4] f32, sums [rows, tiles].
// Numerics: f32 exponentials, summed by a tree. NaN propagates to the sum; the maxima ignore it.
// Mapping: one warp per tile, 16 values per lane in registers; 8 warps per block.
// Bound: rows * vocab * 4 bytes, read once. 128 x 32128 on an H200: 16.4 MB, 3.8 us at 4.3 TB/s.
// Measurements: kernels/sampling/NOTES.md.
// Test: tests/kernels/sampling/selection_test.cc.
template <bool kSums>
__global__ void __launch_bounds__(kSummaryThreads, 8)
    SummaryKernel(LogitRows logits, Requests requests, RowSummaries out) {
  const int warp = static_cast<int>(blockIdx.x * (kSummaryThreads / 32) + threadIdx.x / 32);
  const int row = warp / logits.tiles, tile = warp % logits.tiles;
  const int rows =
      requests.row_offsets == nullptr ? logits.rows : __ldcg(requests.row_offsets + requests.n);
  WaitOnDependentGrids();
  if (row >= rows) return;
  const TileSummary summary = Summarize<kSums>(logits, row, tile);
  if (threadIdx.x % 32 != 0) return;
  const int64_t at = static_cast<int64_t>(row) * logits.tiles + tile;
  *reinterpret_cast<float4*>(out.maxima + at * kTileGroups) =
      make_float4(summary.maxima[0], summary.maxima[1], summary.maxima[2], summary.maxima[3]);
  if constexpr (kSums) out.sums[at] = summary.sum;
}

// out[row] = log(sum(exp(logits[row]))).
// Shapes: logits [rows, vocab] f32, out [rows] f32.
// Numerics: f32 exponentials, summed by a tree within a tile; tiles are merged in f64 (MergeTiles).
// Bitwise equal to log_sums of TopK.
// Mapping: one block per row; its warps loop over the tiles and store tile sums in shared memory.
// Bound: rows * vocab * 4 bytes, read once; a row is read by one SM only.
// Test: tests/kernels/sampling/selection_test.cc.
__global__ void __launch_bounds__(kLargeBlock)
    LogSumExpKernel(LogitRows logits, float* out, int64_t out_stride) {
  extern __shared__ TileSum tiles[];
  WaitOnDependentGrids();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (int tile = warp; tile < logits.tiles; tile += warps) {
    const TileSum sum = Summarize<true>(logits, blockIdx.x, tile).sum;
    if (threadIdx.x % 32 == 0) tiles[tile] = sum;
  }
  __syncthreads();
  if (warp != 0) return;
  const RowSum sum = MergeTiles(tiles, logits.tiles);
  if (threadIdx.x == 0) out[blockIdx.x * out_stride] = LogOf(sum);
}

// Access to the values of one request (its scores after shift and bias, see TopKArgs), for the
// block that ranks them. A group index counts the groups of kGroup tokens over all rows of the
// request.
class RequestValues {
 public:
  // May be called before WaitOnDependentGrids: reads only index tables, bypassing the L1 cache.
  __device__ RequestValues(const RankParams& r, int request) : r_(r) {
    const bool single = r.requests.row_offsets == nullptr;
    begin_ = single ? request : __ldcg(r.requests.row_offsets + request);
    rows_ = (single ? request + 1 : __ldcg(r.requests.row_offsets + request + 1)) - begin_;
    row_groups_ = r.logits.tiles * kTileGroups;
    const bool log_softmax = r.log_softmax != nullptr && __ldcg(r.log_softmax + request) != 0;
    shift_ = log_softmax ? r.log_sums : r.row_shift;
    shift_stride_ = log_softmax ? r.log_sums_stride : r.shift_stride;
  }

  __device__ int begin() const { return begin_; }
  __device__ int rows() const { return rows_; }
  __device__ int groups() const { return rows_ * row_groups_; }

  // Sort key (KeyOf) of a group's maximum after the row's shift and bias have been applied.
  // Rounding is monotonic, so this is also the maximum of the sort keys of all values of the group.
  __device__ unsigned GroupKey(int group) const {
    const int row = begin_ + group / row_groups_;
    return Transformed(
        r_.summaries.maxima[static_cast<int64_t>(row) * row_groups_ + group % row_groups_],
        Shift(row), Bias(row));
  }

  // Calls visit(key, flat index) on every value of the groups whose maximum reaches `bound`. The
  // groups are divided among the warps of the block; the lanes of a warp visit a group together.
  template <typename Visit>
  __device__ void ForEachValue(unsigned bound, const Visit& visit) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int step = static_cast<int>(blockDim.x);
    for (int base = static_cast<int>(threadIdx.x) - lane; base < groups(); base += step) {
      const bool reaches = base + lane < groups() && GroupKey(base + lane) >= bound;
      for (unsigned hits = __ballot_sync(kWholeWarp, reaches); hits != 0; hits &= hits - 1) {
        VisitGroup(base + __ffs(static_cast<int>(hits)) - 1, visit);
      }
    }
  }

 private:
  __device__ float Shift(int row) const {
    return shift_ == nullptr ? 0.0f : shift_[row * shift_stride_];
  }
  // Without a bias, -0 is added: x + -0 is x for every x, including -0.
  __device__ float Bias(int row) const {
    return r_.row_bias == nullptr ? -0.0f : r_.row_bias[row * r_.bias_stride];
  }
  __device__ static unsigned Transformed(float x, float shift, float bias) {
    return KeyOf((x - shift) + bias);
  }
  template <typename Visit>
  __device__ void VisitGroup(int group, const Visit& visit) const {
    const int row = group / row_groups_, first = group % row_groups_ * kGroup;
    const float shift = Shift(begin_ + row), bias = Bias(begin_ + row);
    float values[4];
    LoadGroup(r_.logits, begin_ + row, first, values);
    const int token = first + static_cast<int>(threadIdx.x) % 32 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (token + i >= r_.logits.vocab) continue;
      visit(Transformed(values[i], shift, bias), row * r_.logits.vocab + token + i);
    }
  }

  const RankParams& r_;
  const float* shift_;
  int64_t shift_stride_;
  int begin_, rows_, row_groups_;
};

// Packs a value's key (KeyOf) and the value's flat index (row * vocab + token) into one integer,
// the value's rank: a greater rank is better, and ranks are unique.
__device__ __forceinline__ uint64_t PackRank(unsigned key, int index) {
  return static_cast<uint64_t>(key) << 32 | ~static_cast<unsigned>(index);
}

struct RankShared {
  uint64_t candidates[kMaxCandidates];
  int count;  // candidates found; may exceed kMaxCandidates
  // State of SelectExactly, a radix select of the k-th best rank. histogram: counts of the current
  // digit. prefix: the higher digits of the k-th best rank, already known. wanted: the k-th best
  // rank is the wanted-th best of the ranks that begin with prefix.
  int histogram[256];
  uint64_t prefix;
  int wanted;
};

// Returns to all threads of the block the largest `key` that any of them passes. `warps` [32] is
// shared memory.
__device__ unsigned BlockMax(unsigned key, unsigned* warps) {
  const int lane = static_cast<int>(threadIdx.x) % 32, n = static_cast<int>(blockDim.x) / 32;
  key = __reduce_max_sync(kWholeWarp, key);
  if (lane == 0) warps[threadIdx.x / 32] = key;
  __syncthreads();
  return __reduce_max_sync(kWholeWarp, lane < n ? warps[lane] : 0);
}

// Returns a lower bound of the k-th best key (KeyOf a value) of the request. The bound is close to
// that key, so that few other keys reach it. k == 1: the best key. k > 1: approximately the k-th
// best of the per-thread maxima, determined bit by bit. Returns 0, a bound that every key reaches,
// if the request's rows contain fewer than k groups (of kGroup consecutive tokens of a row).
__device__ unsigned LowerBound(const RequestValues& values, int k) {
  unsigned best = 0;
  for (int g = static_cast<int>(threadIdx.x); g < values.groups();
       g += static_cast<int>(blockDim.x)) {
    best = max(best, values.GroupKey(g));
  }
  if (k == 1) {
    __shared__ unsigned warps[32];
    return BlockMax(best, warps);
  }
  unsigned bound = 0;
  for (unsigned bit = 1u << 31; bit != 0; bit >>= 1) {
    const int count = __syncthreads_count(best >= (bound | bit));
    if (count < k) continue;
    bound |= bit;
    if (count <= k + k / 4) break;
  }
  return bound;
}

// The first warp finds the histogram digit that contains the s.wanted-th largest value, appends it
// to s.prefix, and sets s.wanted to the number still wanted within that digit.
__device__ void PickDigit(RankShared& s, int shift) {
  if (threadIdx.x >= 32) return;
  const int lane = static_cast<int>(threadIdx.x);
  int above = 0;  // number of values whose digit belongs to a higher lane (8 digits per lane)
  int own = 0;
  for (int i = 0; i < 8; ++i) own += s.histogram[lane * 8 + i];
  for (int other = 31; other > 0; --other) {
    const int count = __shfl_sync(kWholeWarp, own, other);
    if (other > lane) above += count;
  }
  const int wanted = s.wanted;
  __syncwarp();
  if (above >= wanted || above + own < wanted) return;
  int digit = lane * 8 + 7;
  while (above + s.histogram[digit] < wanted) above += s.histogram[digit--];
  s.prefix |= static_cast<uint64_t>(digit) << shift;
  s.wanted = wanted - above;
}

// Slow path if more than kMaxCandidates values reach the bound (ties, flat rows). Radix-selects the
// k-th best rank by its 8-bit digits, most significant first, and then collects the k candidates
// that reach it. Reads the values of the request nine times.
__device__ void SelectExactly(const RequestValues& values, unsigned bound, int k, RankShared& s) {
  if (threadIdx.x == 0) {
    s.prefix = 0;
    s.wanted = k;
  }
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < 256; i += static_cast<int>(blockDim.x)) {
      s.histogram[i] = 0;
    }
    __syncthreads();
    const uint64_t prefix = s.prefix;
    values.ForEachValue(bound, [&](unsigned key, int index) {
      const uint64_t rank = PackRank(key, index);
      // Two shifts, because a single shift by 64 bits is undefined.
      if (key >= bound && (rank ^ prefix) >> shift >> 8 == 0) {
        atomicAdd(&s.histogram[rank >> shift & 255], 1);
      }
    });
    __syncthreads();
    PickDigit(s, shift);
    __syncthreads();
  }
  if (threadIdx.x == 0) s.count = 0;
  __syncthreads();
  const uint64_t last = s.prefix;
  values.ForEachValue(bound, [&](unsigned key, int index) {
    const uint64_t rank = PackRank(key, index);
    if (rank >= last) s.candidates[atomicAdd(&s.count, 1)] = rank;
  });
  __syncthreads();
}

// Writes log_sums of the request's rows from the tile sums that SummaryKernel has computed.
__device__ void WriteLogSums(const RankParams& r, const RequestValues& values) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (int i = warp; i < values.rows(); i += warps) {
    const int64_t row = values.begin() + i;
    const RowSum sum = MergeTiles(r.summaries.sums + row * r.logits.tiles, r.logits.tiles);
    if (threadIdx.x % 32 == 0) r.log_sums[row * r.log_sums_stride] = LogOf(sum);
  }
  __syncthreads();
}

// Phase two: writes the k best values of each request and their flat indices, in order.
// Shapes: values, indices [n, k_max] (TopKArgs); input: the summaries of SummaryKernel.
// Numerics: compares only ranks (PackRank), which are unique integers. The order in which threads
// append candidates therefore does not matter. SelectExactly is used if more than kMaxCandidates
// values reach LowerBound(k).
// Mapping: one block per request. Candidates are in shared memory; the output position of a
// candidate is the number of candidates with a greater rank.
// Bound of the run time: about 30 barriers and two passes over data in L2, mostly the summaries.
// Test: tests/kernels/sampling/selection_test.cc.
__global__ void __launch_bounds__(kLargeBlock) RankKernel(const __grid_constant__ RankParams r) {
  __shared__ RankShared s;
  const int request = static_cast<int>(blockIdx.x), step = static_cast<int>(blockDim.x);
  const RequestValues values(r, request);
  const int k = r.requests.k == nullptr ? r.requests.k_each : __ldcg(r.requests.k + request);
  WaitOnDependentGrids();
  if (threadIdx.x == 0) s.count = 0;
  if (r.log_sums != nullptr) WriteLogSums(r, values);
  const unsigned bound = LowerBound(values, k);
  values.ForEachValue(bound, [&](unsigned key, int index) {
    if (key < bound || *static_cast<volatile int*>(&s.count) > kMaxCandidates) return;
    const int at = atomicAdd(&s.count, 1);
    if (at < kMaxCandidates) s.candidates[at] = PackRank(key, index);
  });
  __syncthreads();
  if (s.count > kMaxCandidates) SelectExactly(values, bound, k, s);

  float* out_values = r.values + request * r.values_stride;
  int32_t* out_indices = r.indices + request * r.indices_stride;
  const int n = s.count, first = static_cast<int>(threadIdx.x);
  for (int i = first; i < n; i += step) {
    const uint64_t rank = s.candidates[i];
    int before = 0;
    for (int j = 0; j < n; ++j) before += s.candidates[j] > rank;
    if (before >= k) continue;
    const int32_t index = static_cast<int32_t>(~static_cast<unsigned>(rank));
    out_values[before] = ValueOf(static_cast<unsigned>(rank >> 32));
    out_indices[before] = index;
    if (before == 0 && r.best != nullptr) r.best[request] = index;
  }
  if (n == 0 && first == 0 && r.best != nullptr) r.best[request] = -1;
  for (int i = min(n, k) + first; i < r.k_max; i += step) {
    out_values[i] = kMinusInf;
    out_indices[i] = -1;
  }
}

}  // namespace

LogitRows MakeLogitRows(const Tensor& logits) {
  const int64_t vocab = logits.dim[1];
  return {logits.as<float>(),
          logits.stride[0],
          static_cast<int>(logits.dim[0]),
          static_cast<int>(vocab),
          reinterpret_cast<uintptr_t>(logits.data) % 16 == 0 && logits.stride[0] % 4 == 0,
          static_cast<int>((vocab + kTile - 1) / kTile)};
}

RowSummaries::RowSummaries(void* scratch, int64_t rows, int64_t vocab) {
  const int64_t tiles = rows * ((vocab + kTile - 1) / kTile);
  Carver carver(scratch);
  maxima = static_cast<float*>(carver.Take(tiles * kTileGroups * 4));
  sums = static_cast<TileSum*>(carver.Take(tiles * static_cast<int64_t>(sizeof(TileSum))));
  bytes = carver.used_bytes();
}

void SummarizeRows(const LogitRows& logits, const Requests& requests, bool want_sums,
                   const RowSummaries& out, CudaStream& stream) {
  constexpr int64_t kWarps = kSummaryThreads / 32;
  const int64_t warps = int64_t{logits.rows} * logits.tiles;
  if (warps == 0) return;
  const dim3 grid(static_cast<unsigned>((warps + kWarps - 1) / kWarps));
  Launch(stream, grid, dim3(kSummaryThreads), 0,
         want_sums ? SummaryKernel<true> : SummaryKernel<false>, logits, requests, out);
}

void RankRows(const RankParams& ranking, CudaStream& stream) {
  if (ranking.requests.n == 0) return;
  QT_CHECK_LE(2 * ranking.k_max, kMaxCandidates);
  Launch(stream, dim3(static_cast<unsigned>(ranking.requests.n)),
         dim3(ranking.k_max <= kSmallK ? kSmallBlock : kLargeBlock), 0, RankKernel, ranking);
}

void LogSumExp(const LogSumExpArgs& args, CudaStream& stream) {
  const LogitRows logits = MakeLogitRows(args.logits);
  if (logits.rows == 0) return;
  const int threads = std::min(kLargeBlock, 32 * std::max(1, logits.tiles));
  Launch(stream, dim3(static_cast<unsigned>(logits.rows)), dim3(static_cast<unsigned>(threads)),
         static_cast<size_t>(logits.tiles) * sizeof(TileSum), LogSumExpKernel, logits,
         args.out.as<float>(), args.out.stride[0]);
}

void TopK(const TopKArgs& args, CudaStream& stream) {
  if (args.k.empty()) return;
  RankParams r{
      .logits = MakeLogitRows(args.scores),
      .summaries = RowSummaries(args.scratch.data, args.scores.dim[0], args.scores.dim[1])};
  r.requests = {stream.DevicePtr(args.row_offsets.data()), stream.DevicePtr(args.k.data()),
                static_cast<int>(args.k.size()), 0};
  r.row_shift = args.row_shift.as<float>();
  r.shift_stride = args.row_shift.stride[0];
  r.row_bias = args.row_bias.as<float>();
  r.bias_stride = args.row_bias.stride[0];
  r.log_sums = args.log_sums.as<float>();
  r.log_sums_stride = args.log_sums.stride[0];
  if (!args.log_softmax.empty()) r.log_softmax = stream.DevicePtr(args.log_softmax.data());
  r.values = args.values.as<float>();
  r.values_stride = args.values.stride[0];
  r.indices = args.indices.as<int32_t>();
  r.indices_stride = args.indices.stride[0];
  r.k_max = static_cast<int>(args.values.dim[1]);
  r.best = args.best.as<int32_t>();
  SummarizeRows(r.logits, r.requests, r.log_sums != nullptr, r.summaries, stream);
  RankRows(r, stream);
}

int64_t TopKScratchBytes(int64_t rows, int64_t vocab, int64_t, const CudaStream&) {
  return RowSummaries(nullptr, rows, vocab).bytes;
}

}  // namespace quintet::cuda
