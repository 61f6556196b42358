// Attention of few queries in bf16 or f16: a decoder's step. Bound by reading the keys and values
// once, so they go from memory to registers in the order in which mma.sync wants them, and many
// blocks share long sequences.
#include "kernels/attention_call.cuh"
#include "kernels/attention_softmax.cuh"
#include "kernels/mma.cuh"

namespace quintet::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kStepKeys = 16;  // of one step of a warp
constexpr int kStride = kWarps * kStepKeys;
constexpr int kStages = 3;         // steps of a warp that are in flight or being used
constexpr int kLeastSplit = 128;   // keys: less is not worth a second kernel
constexpr int kBlocksPerUnit = 4;  // of splits: what a multiprocessor holds at once
constexpr int kCombineWarps = 4;

// What one split knows of its rows: the largest exponent and the sum of weights, and the
// weighted sum of values. [sequences, heads, splits][kFewRows]: out [kDim] f32, then [2]
// statistics.
struct Partials {
  float* out = nullptr;
  float* statistics = nullptr;
};

// Splits of a sequence with kv_len keys are all this long but the last one.
__device__ int SplitKeys(int kv_len, int splits) {
  const int even = (kv_len + splits - 1) / splits;
  return max(kLeastSplit, (even + 31) / 32 * 32);
}

// A warp's keys and values on their way. Of the keys each lane reads back what it copied itself;
// the values are rows whose 16-byte pieces are permuted, for ldmatrix. Afterwards the place of the
// warp's results.
template <int kDim>
union alignas(16) WarpMemory {
  static constexpr int kBlocks = kDim / 32;  // of 32 channels: one 16-byte piece of four lanes
  static constexpr int kPieces = kDim / 8;   // of a row, 16 bytes each
  struct Step {
    uint4 k[kStepKeys / 8][kBlocks][32];
    uint4 v[kStepKeys][kPieces];
    __device__ uint4* Value(int key, int piece) { return &v[key][piece ^ (key & 7)]; }
  } steps[kStages];
  struct Result {
    float out[kFewRows][kDim + 4];
    float most[kFewRows], sum[kFewRows];
  } result;
};

template <typename T, int kDim>
class FewRowsWarp {
  static constexpr int kBlocks = WarpMemory<kDim>::kBlocks;
  static constexpr int kPieces = WarpMemory<kDim>::kPieces;

 public:
  // begin: where the block's keys begin. Rows of the first steps are asked for before anything else
  // is known.
  __device__ FewRowsWarp(const AttentionCall& call, WarpMemory<kDim>& memory, int s, int head,
                         int begin)
      : call_(call),
        memory_(memory),
        key_rows_(call, s),
        head_(head),
        begin_(begin + static_cast<int>(threadIdx.x) / 32 * kStepKeys) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) rows_[i] = RowOfLane(begin_ + i * kStride);
  }

  // Adds this warp's keys before `end`.
  __device__ void Run(const Sequence& sequence, int end) {
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) BeginCopies(i, rows_[i], begin_ + i * kStride, end);
    uint32_t row = rows_[kStages - 1];
    LoadQueries(sequence);
    int stage = 0, next = kStages - 1;
    for (int key = begin_; key < end; key += kStride) {
      __syncwarp();  // every lane is done with the step whose place is taken now
      BeginCopies(next, row, key + (kStages - 1) * kStride, end);
      if (key + kStages * kStride < end) row = RowOfLane(key + kStages * kStride);
      WaitForCopies<kStages - 1>();
      __syncwarp();
      AddStep(memory_.steps[stage], sequence, key, end);
      next = stage;
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
  }

  // The warp's results, in place of its keys.
  __device__ void Keep(int q_len) {
    WaitForCopies<0>();
    __syncwarp();
    typename WarpMemory<kDim>::Result& result = memory_.result;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = softmax_.Sum(half);
      const int row = Row(half);
      if (row >= q_len) continue;
      result.most[row] = softmax_.most[half];
      result.sum[row] = sum;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        result.out[row][Channel(n, 0)] = out_[n][2 * half];
        result.out[row][Channel(n, 1)] = out_[n][2 * half + 1];
      }
    }
  }

 private:
  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int Row(int half) { return half * 8 + Lane() / 4; }
  // Channel of out_[n][2 half + side].
  __device__ static int Channel(int n, int side) { return n * 8 + Lane() % 4 * 2 + side; }

  // The row of the lane's key of a step; any row where the sequence may have no such key.
  __device__ uint32_t RowOfLane(int key) const {
    key += Lane() % kStepKeys;
    return key_rows_.Row(key_rows_.slots == nullptr ? key : min(key, call_.slots_len - 1));
  }

  // Rows g and g + 8, four channels for each of mma's steps, in the order in which keys are loaded.
  __device__ void LoadQueries(const Sequence& sequence) {
    const T* q = static_cast<const T*>(call_.q) + head_ * call_.q_head;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool valid = Row(half) < sequence.q_len;
      const T* row = q + (sequence.first_row + (valid ? Row(half) : 0)) * call_.q_row;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int channel = b * 32 + Lane() % 4 * 8;
        uint4 bits = {0, 0, 0, 0};
        if (valid && channel < call_.head_dim) {
          if (call_.q_vectors) {
            bits = *reinterpret_cast<const uint4*>(row + channel);
          } else {
            T* values = reinterpret_cast<T*>(&bits);
#pragma unroll
            for (int i = 0; i < 8; ++i) values[i] = row[channel + i];
          }
        }
        q_[half][b] = bits;
      }
    }
  }

  __device__ void Copy(uint4& to, const T* base, uint32_t row, int64_t stride, int channel,
                       bool valid) const {
    valid = valid && channel < call_.head_dim;
    CopyAsync16(SharedAddress(&to), valid ? base + row * stride + channel : base, valid);
  }

  // Keys: lane 4 g + t takes channels 8 t.. of key g of each eight. Values: lanes take pieces of
  // rows one after another. Four lanes side by side ask for whole 32-byte sectors: two that share
  // one from further apart would fetch it twice. Zeros from `end` on.
  __device__ void BeginCopies(int stage, uint32_t row, int begin, int end) {
    if (begin < end) {
      const T* keys = static_cast<const T*>(call_.k) + head_ * call_.k_head;
      const T* values = static_cast<const T*>(call_.v) + head_ * call_.v_head;
      typename WarpMemory<kDim>::Step& step = memory_.steps[stage];
      const int lane = Lane(), g = lane / 4, t = lane % 4;
#pragma unroll
      for (int j = 0; j < kStepKeys / 8; ++j) {
        const int key = j * 8 + g;
        const uint32_t r = __shfl_sync(0xffffffffu, row, key);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          Copy(step.k[j][b][lane], keys, r, call_.k_row, b * 32 + t * 8, begin + key < end);
        }
      }
#pragma unroll
      for (int i = 0; i < kStepKeys * kPieces / 32; ++i) {
        const int key = (i * 32 + lane) / kPieces, piece = (i * 32 + lane) % kPieces;
        const uint32_t r = __shfl_sync(0xffffffffu, row, key);
        Copy(*step.Value(key, piece), values, r, call_.v_row, piece * 8, begin + key < end);
      }
    }
    CommitCopies();
  }

  __device__ void AddStep(typename WarpMemory<kDim>::Step& step, const Sequence& sequence,
                          int begin, int end) {
    float scores[kStepKeys / 8][4] = {};
#pragma unroll
    for (int j = 0; j < kStepKeys / 8; ++j) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const uint4 k = step.k[j][b][Lane()], top = q_[0][b], low = q_[1][b];
        Mma<T>(scores[j], top.x, low.x, top.y, low.y, k.x, k.y);
        Mma<T>(scores[j], top.z, low.z, top.w, low.w, k.z, k.w);
      }
    }
    // Made anew at every step: kept, it would take registers.
    const HeadBias bias(call_.bias, call_.causal, static_cast<int>(head_), call_.heads);
    const int lo = begin - (sequence.position + sequence.q_len - 1);
    const int hi = begin + kStepKeys - 1 - sequence.position;
    float scale = call_.scale * kLog2E, shift = 0.0f;
    if (scale >= 0.0f && begin + kStepKeys <= end && bias.Constant(lo, hi)) {
      shift = bias.At(lo);
    } else {
      AddPairBias(scores, bias, sequence, begin, end);
      scale = 1.0f;
    }
    float shrink[2];
    softmax_.Weigh(scores, scale, shift, shrink);
    Shrink(out_, shrink);
    AddValues(scores, step);
  }

  // To units of log2, -inf where the key is hidden or past the end.
  __device__ void AddPairBias(float (&scores)[kStepKeys / 8][4], const HeadBias& bias,
                              const Sequence& sequence, int begin, int end) const {
    const float scale = call_.scale * kLog2E;
#pragma unroll
    for (int j = 0; j < kStepKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = begin + j * 8 + Lane() % 4 * 2 + e % 2, row = Row(e / 2);
        const float value = row < sequence.q_len ? bias.At(key - (sequence.position + row)) : 0.0f;
        scores[j][e] = key < end ? fmaf(scores[j][e], scale, value) : -INFINITY;
      }
    }
  }

  __device__ void AddValues(const float (&weights)[kStepKeys / 8][4],
                            typename WarpMemory<kDim>::Step& step) {
    uint32_t a[4];
    RoundWeights<T>(weights, 0, a);
#pragma unroll
    for (int n = 0; n < kDim / 8; n += 2) {
      uint32_t b[4];
      LoadMatricesTransposed(b, SharedAddress(step.Value(Lane() % 16, n + Lane() / 16)));
      Mma<T>(out_[n], a[0], a[1], a[2], a[3], b[0], b[1]);
      Mma<T>(out_[n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
    }
  }

  const AttentionCall& call_;
  WarpMemory<kDim>& memory_;
  const KeyRows key_rows_;
  const int64_t head_;
  const int begin_;  // of this warp's first step

  uint32_t rows_[kStages];
  uint4 q_[2][kBlocks];
  float out_[kDim / 8][4] = {};
  OnlineSoftmax softmax_;
};

// 2^(x - base), where all that is -inf counts as nothing.
__device__ float Share(float x, float base) { return x == -INFINITY ? 0.0f : Exp2(x - base); }

// What: out = softmax(scale q k^T + bias + mask) v for up to 16 queries of a sequence: the
// beams of a request share one reading of its keys. No FIRE.
// Shapes: q, out [rows, heads, head_dim], k, v rows of head_dim values (a multiple of 8, at
// most 128) at 16-byte addresses, T bf16 or f16.
// Math: as attention_tiled.cu; each warp has an online softmax of its own, merged in the order
// of warps, then of splits. A row's result depends on its sequence and on how many splits the
// launch has, and is the same from run to run.
// Map: grid (splits, heads, sequences); warps take turns of 16 keys, kStages of them under
// way. One mma covers 16 queries, of which one or four are used: products are free here.
// Channels are permuted so that the 16 bytes of keys that a lane copies are its fragments.
// Bound: 2 kv_len head_dim sizeof(T) bytes for each head and sequence, at 4.3 TB/s on an H200.
// Spec: tests/kernels/attention_test.cc.
//
// Versions on an H200, bf16, 12 heads, head_dim 64; share of 4.3 TB/s at 128 sequences of 1000
// keys and at 32 of 128:
//   1 loads into registers, 32 keys a step: predicted 80 %, seen 62 % and 36 %.
//   2 copies of three steps of 16 keys under way, slots read beside lengths: predicted 85 %
//     and 55 %, seen 69 % and 32 %; the L2 cache is 87 % busy, DRAM 62 %.
//     Rejected: keys in whole rows, read by other lanes: predicted 80 %, seen 70 %.
//   3 values in whole rows, read by ldmatrix: two lanes that were not side by side had each asked
//     for half of the same 32 bytes, a third of all that L2 gave. Predicted 88 %, seen 93 % and
//     38 %.
template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, kDim == 64 ? 4 : 2)
    AttendFewRowsKernel(const __grid_constant__ AttentionCall call, Partials partials) {
  extern __shared__ __align__(16) unsigned char shared[];
  WarpMemory<kDim>* memory = reinterpret_cast<WarpMemory<kDim>*>(shared);
  WaitForInputs();
  const int split = static_cast<int>(blockIdx.x), splits = static_cast<int>(gridDim.x);
  const int s = static_cast<int>(blockIdx.z), head = static_cast<int>(blockIdx.y);
  const int w = static_cast<int>(threadIdx.x) / 32;
  int split_keys = 0;
  if (splits > 1) split_keys = SplitKeys(Sequence(call, s).kv_len, splits);
  FewRowsWarp<T, kDim> warp(call, memory[w], s, head, split * split_keys);
  const Sequence sequence(call, s);
  if (sequence.q_len == 0 || sequence.q_len > kFewRows) return;
  if (split > 0 && split * split_keys >= sequence.kv_len) return;
  warp.Run(sequence,
           splits == 1 ? sequence.kv_len : min((split + 1) * split_keys, sequence.kv_len));
  warp.Keep(sequence.q_len);
  __syncthreads();

  const int64_t item =
      ((static_cast<int64_t>(sequence.index) * call.heads + head) * splits + split) * kFewRows;
  T* out = static_cast<T*>(call.out) + head * call.out_head;
  for (int i = static_cast<int>(threadIdx.x); i < sequence.q_len * kDim; i += kThreads) {
    const int row = i / kDim, channel = i % kDim;
    float most = memory[0].result.most[row];
#pragma unroll
    for (int from = 1; from < kWarps; ++from) most = fmaxf(most, memory[from].result.most[row]);
    float total = 0.0f, value = 0.0f;
#pragma unroll
    for (int from = 0; from < kWarps; ++from) {
      const float share = Share(memory[from].result.most[row], most);
      total = fmaf(share, memory[from].result.sum[row], total);
      value = fmaf(share, memory[from].result.out[row][channel], value);
    }
    if (splits > 1) {
      partials.out[(item + row) * kDim + channel] = value;
      if (channel == 0) {
        partials.statistics[(item + row) * 2] = most;
        partials.statistics[(item + row) * 2 + 1] = total;
      }
    } else if (channel < call.head_dim) {
      out[(sequence.first_row + row) * call.out_row + channel] =
          FromF32<T>(total > 0.0f ? value / total : 0.0f);
    }
  }
}

// What: the splits of each row merged, in their order.
// Shapes: partials [sequences, heads, splits, kFewRows], out [rows, heads, head_dim].
// Map: grid (kFewRows / kCombineWarps, heads, sequences), a warp a row.
// Bound: (kDim + 2) * 4 bytes a split and row.
// Spec: tests/kernels/attention_test.cc.
template <typename T, int kDim>
__global__ void __launch_bounds__(kCombineWarps * 32)
    MergeSplitsKernel(const __grid_constant__ AttentionCall call, Partials partials, int splits) {
  WaitForInputs();
  const int head = static_cast<int>(blockIdx.y);
  const Sequence sequence(call, static_cast<int>(blockIdx.z));
  const int row = static_cast<int>(blockIdx.x * kCombineWarps + threadIdx.x / 32);
  if (row >= sequence.q_len || sequence.q_len > kFewRows) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int split_keys = SplitKeys(sequence.kv_len, splits);
  const int used = max(1, (sequence.kv_len + split_keys - 1) / split_keys);
  const int64_t first =
      (static_cast<int64_t>(sequence.index) * call.heads + head) * splits * kFewRows + row;

  float most = -INFINITY;
  for (int split = lane; split < used; split += 32) {
    most = fmaxf(most, partials.statistics[(first + split * kFewRows) * 2]);
  }
  most = WarpMax(most);
  float total = 0.0f, values[kDim / 32] = {};
#pragma unroll 8
  for (int split = 0; split < used; ++split) {
    const int64_t from = first + split * kFewRows;
    const float share = Share(partials.statistics[from * 2], most);
    total = fmaf(share, partials.statistics[from * 2 + 1], total);
#pragma unroll
    for (int c = 0; c < kDim / 32; ++c) {
      values[c] = fmaf(share, partials.out[from * kDim + c * 32 + lane], values[c]);
    }
  }
  T* out =
      static_cast<T*>(call.out) + (sequence.first_row + row) * call.out_row + head * call.out_head;
#pragma unroll
  for (int c = 0; c < kDim / 32; ++c) {
    const int channel = c * 32 + lane;
    if (channel >= call.head_dim) continue;
    out[channel] = FromF32<T>(total > 0.0f ? values[c] / total : 0.0f);
  }
}

int64_t MostSplitBlocks(const Stream& stream) {
  return int64_t{kBlocksPerUnit} * stream.device().multiprocessors();
}

// Splits of each sequence: as many as keep the device busy, none of them too short.
int Splits(const AttentionCall& call, int max_kv_len, const Stream& stream) {
  const int64_t items = static_cast<int64_t>(call.sequences) * call.heads;
  const int64_t most = (max_kv_len + kLeastSplit - 1) / kLeastSplit;
  return static_cast<int>(std::max<int64_t>(1, std::min(MostSplitBlocks(stream) / items, most)));
}

template <typename T, int kDim>
void LaunchFewRows(const AttentionCall& call, int max_kv_len, void* scratch, Stream& stream) {
  constexpr int kSharedBytes = kWarps * sizeof(WarpMemory<kDim>);
  static const cudaError_t allowed = cudaFuncSetAttribute(
      AttendFewRowsKernel<T, kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (!QT_CUDA(stream.device(), allowed)) return;
  const unsigned heads = static_cast<unsigned>(call.heads);
  const unsigned sequences = static_cast<unsigned>(call.sequences);
  const int splits = Splits(call, max_kv_len, stream);
  Partials partials;
  partials.out = static_cast<float*>(scratch);
  partials.statistics = partials.out + MostSplitBlocks(stream) * kFewRows * kDim;
  Launch(stream, dim3(static_cast<unsigned>(splits), heads, sequences), dim3(kThreads),
         kSharedBytes, AttendFewRowsKernel<T, kDim>, call, partials);
  if (splits == 1) return;
  Launch(stream, dim3(kFewRows / kCombineWarps, heads, sequences), dim3(kCombineWarps * 32), 0,
         MergeSplitsKernel<T, kDim>, call, partials, splits);
}

}  // namespace

template <typename T>
void AttendFewRows(const AttentionCall& call, int max_kv_len, void* scratch, Stream& stream) {
  if (call.head_dim <= 64) return LaunchFewRows<T, 64>(call, max_kv_len, scratch, stream);
  LaunchFewRows<T, 128>(call, max_kv_len, scratch, stream);
}
template void AttendFewRows<__nv_bfloat16>(const AttentionCall&, int, void*, Stream&);
template void AttendFewRows<__half>(const AttentionCall&, int, void*, Stream&);

int64_t FewRowsScratchBytes(int64_t head_dim, const Stream& stream) {
  if (head_dim > kFewRowsHeadDim) return 0;
  const int64_t padded = head_dim <= 64 ? 64 : 128;
  return MostSplitBlocks(stream) * kFewRows * (padded + 2) * 4;
}

}  // namespace quintet::cuda
