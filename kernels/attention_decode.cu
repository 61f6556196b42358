// Attention of few queries in bf16 or f16: a decoder's step. Bound by reading the keys and values
// once, so they go from memory to registers in the order in which mma.sync wants them, and many
// blocks share long sequences.
#include "kernels/attention_call.cuh"
#include "kernels/mma.cuh"

namespace quintet::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kLeastSplit = 128;   // keys: less is not worth a second kernel
constexpr int kBlocksPerUnit = 8;  // of splits: what keeps a multiprocessor busy, twice
constexpr int kCombineWarps = 4;

// Keys of one step of a warp: enough bytes in flight, and no more than registers hold.
template <int kDim>
inline constexpr int kStepKeys = kDim == 64 ? 32 : 16;

// What one split knows of its rows: weights' largest exponent and sum, and the weighted sum of
// values. [sequences, heads, splits][kFewRows]: out [kDim] f32, then [2] statistics.
struct Partials {
  float* out = nullptr;
  float* statistics = nullptr;
};

// Splits of a sequence with kv_len keys are all this long but the last one.
__device__ int SplitKeys(int kv_len, int splits) {
  const int even = (kv_len + splits - 1) / splits;
  return max(kLeastSplit, (even + 31) / 32 * 32);
}

template <typename T, int kDim>
class FewRowsWarp {
  static constexpr int kKeys = kStepKeys<kDim>;
  static constexpr int kBlocks = kDim / 32;  // of 32 channels: one 16-byte load of four lanes
  static constexpr int kHalves = kDim / 64;  // of 64 channels: one 16-byte load of eight lanes

 public:
  __device__ FewRowsWarp(const AttentionCall& call, const Sequence& sequence, int head)
      : call_(call), sequence_(sequence), key_rows_(call, sequence.index), head_(head) {
    LoadQueries();
  }

  // Adds the keys [begin, end), every kWarps-th step of them from this warp's on.
  __device__ void Run(int begin, int end) {
    begin += static_cast<int>(threadIdx.x) / 32 * kKeys;
    uint32_t row = begin < end ? RowOfLane(begin, end) : 0;
    for (; begin < end; begin += kWarps * kKeys) {
      uint4 k[kKeys / 8][kBlocks], v[kKeys / 16][4][kHalves];
      LoadStep(row, k, v);
      // The next step's slots come while this step is worked on.
      if (begin + kWarps * kKeys < end) row = RowOfLane(begin + kWarps * kKeys, end);
      float scores[kKeys / 8][4];
      Score(k, scores);
      AddBias(begin, end, scores);
      Weigh(scores);
      AddValues(scores, v);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum_[half] += __shfl_xor_sync(0xffffffffu, sum_[half], 1);
      sum_[half] += __shfl_xor_sync(0xffffffffu, sum_[half], 2);
    }
  }

  // Channel of out(n, e): what the order of the loads made of mma's columns.
  __device__ static int Channel(int n, int e) {
    const int column = Lane() % 4 * 2 + e % 2;
    return n / 8 * 64 + column * 8 + n % 8;
  }
  __device__ static int Row(int half) { return half * 8 + Lane() / 4; }
  __device__ float most(int half) const { return max_[half]; }
  __device__ float sum(int half) const { return sum_[half]; }
  __device__ float out(int n, int e) const { return out_[n][e]; }

 private:
  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % 32; }

  // Rows g and g + 8, four channels for each of mma's steps, in the order in which keys are loaded.
  __device__ void LoadQueries() {
    const T* q = static_cast<const T*>(call_.q) + head_ * call_.q_head;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool valid = Row(half) < sequence_.q_len;
      const T* row = q + (sequence_.first_row + (valid ? Row(half) : 0)) * call_.q_row;
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

  // The row of key begin + lane; keys past the end read the last one's, with weight zero.
  __device__ uint32_t RowOfLane(int begin, int end) const {
    return key_rows_.Row(min(begin + Lane() % kKeys, end - 1));
  }

  __device__ uint4 Load(const T* base, uint32_t row, int64_t stride, int channel) const {
    if (channel >= call_.head_dim) return {0, 0, 0, 0};
    return __ldg(reinterpret_cast<const uint4*>(base + row * stride + channel));
  }

  // Keys: lane 4 g + t takes channels 8 t.. of key g of each group of eight. Values: channels 8 g..
  // of keys 2t, 2t + 1, 2t + 8, 2t + 9 of each sixteen.
  __device__ void LoadStep(uint32_t row, uint4 (&k)[kKeys / 8][kBlocks],
                           uint4 (&v)[kKeys / 16][4][kHalves]) const {
    const T* keys = static_cast<const T*>(call_.k) + head_ * call_.k_head;
    const T* values = static_cast<const T*>(call_.v) + head_ * call_.v_head;
    const int g = Lane() / 4, t = Lane() % 4;
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
      const uint32_t r = __shfl_sync(0xffffffffu, row, j * 8 + g);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) k[j][b] = Load(keys, r, call_.k_row, b * 32 + t * 8);
    }
#pragma unroll
    for (int j = 0; j < kKeys / 16; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t r = __shfl_sync(0xffffffffu, row, j * 16 + t * 2 + i % 2 + i / 2 * 8);
#pragma unroll
        for (int h = 0; h < kHalves; ++h) v[j][i][h] = Load(values, r, call_.v_row, h * 64 + g * 8);
      }
    }
  }

  __device__ void Score(const uint4 (&k)[kKeys / 8][kBlocks], float (&scores)[kKeys / 8][4]) const {
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[j][e] = 0.0f;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const uint4 top = q_[0][b], low = q_[1][b];
        Mma<T>(scores[j], top.x, low.x, top.y, low.y, k[j][b].x, k[j][b].y);
        Mma<T>(scores[j], top.z, low.z, top.w, low.w, k[j][b].z, k[j][b].w);
      }
    }
  }

  // To units of log2, -inf where the key is hidden or past the end.
  __device__ void AddBias(int begin, int end, float (&scores)[kKeys / 8][4]) const {
    const float scale = call_.scale * kLog2E;
    const bool none = call_.bias.kind == BiasKind::kNone && !call_.causal;
    // Made anew at every step: kept, it would take the registers that loads need.
    const HeadBias head_bias(call_.bias, call_.causal, static_cast<int>(head_), call_.heads);
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = begin + j * 8 + Lane() % 4 * 2 + e % 2, row = Row(e / 2);
        float bias = 0.0f;
        if (!none && row < sequence_.q_len) bias = head_bias.Pair(sequence_.position + row, key);
        scores[j][e] = key < end ? fmaf(scores[j][e], scale, bias) : -INFINITY;
      }
    }
  }

  // One step of the online softmax: scores become weights.
  __device__ void Weigh(float (&scores)[kKeys / 8][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = max_[half];
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
        most = fmaxf(most, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
      }
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      const float base = most == -INFINITY ? 0.0f : most;
      const float shrink = Exp2(max_[half] - base);
      max_[half] = most;
      sum_[half] *= shrink;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[j][e] = Exp2(scores[j][e] - base);
          sum_[half] += scores[j][e];
        }
      }
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        out_[n][2 * half] *= shrink;
        out_[n][2 * half + 1] *= shrink;
      }
    }
  }

  // The i-th 16-bit halves of two words side by side.
  __device__ static uint32_t Pair(uint32_t low, uint32_t high, int i) {
    return __byte_perm(low, high, i == 0 ? 0x5410 : 0x7632);
  }
  __device__ static uint32_t Word(const uint4& bits, int i) {
    return i == 0 ? bits.x : i == 1 ? bits.y : i == 2 ? bits.z : bits.w;
  }

  __device__ void AddValues(const float (&weights)[kKeys / 8][4],
                            const uint4 (&v)[kKeys / 16][4][kHalves]) {
#pragma unroll
    for (int j = 0; j < kKeys / 16; ++j) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&from)[4] = weights[2 * j + i / 2];
        a[i] = PackPair<T>(from[i % 2 * 2], from[i % 2 * 2 + 1]);
      }
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        const int h = n / 8, word = n % 8 / 2, side = n % 2;
        const uint32_t b0 = Pair(Word(v[j][0][h], word), Word(v[j][1][h], word), side);
        const uint32_t b1 = Pair(Word(v[j][2][h], word), Word(v[j][3][h], word), side);
        Mma<T>(out_[n], a[0], a[1], a[2], a[3], b0, b1);
      }
    }
  }

  const AttentionCall& call_;
  const Sequence& sequence_;
  const KeyRows key_rows_;
  const int64_t head_;

  uint4 q_[2][kBlocks];
  float out_[kDim / 8][4] = {};
  float max_[2] = {-INFINITY, -INFINITY}, sum_[2] = {0.0f, 0.0f};
};

// Shared memory of a block: each warp's sums, then what they are scaled by.
template <int kDim>
struct FewRowsMemory {
  float out[kWarps][kFewRows][kDim + 4];
  float most[kWarps][kFewRows], sum[kWarps][kFewRows];
};

// 2^(x - base), where all that is -inf counts as nothing.
__device__ float Share(float x, float base) { return x == -INFINITY ? 0.0f : Exp2(x - base); }

// What: out = softmax(scale q k^T + bias + mask) v for up to 16 queries of a sequence: the beams of
// a request share one reading of its keys. Shapes: q, out [rows, heads, head_dim], k, v rows of
// head_dim values (a multiple of 8, at most 128) at 16-byte addresses, T bf16 or f16. Math: as
// attention_tiled.cu; each warp has an online softmax of its own, merged in the order of warps,
// then of splits. A row's result depends on its sequence and on how many splits the launch has, and
// is the same from run to run. Map: grid (splits, heads, sequences); warps take turns of kStepKeys
// keys. One mma covers 16 queries, of which one or four are used: products are free here. Channels
// and keys are permuted so that the 16 bytes a lane loads are its fragment: no shared memory, no
// shuffle on the way. Bound: 2 kv_len head_dim sizeof(T) bytes for each head and sequence. Spec:
// tests/kernels/attention_test.cc.
template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, kDim == 64 ? 3 : 2)
    AttendFewRowsKernel(const __grid_constant__ AttentionCall call, Partials partials) {
  extern __shared__ __align__(16) unsigned char shared[];
  FewRowsMemory<kDim>& memory = *reinterpret_cast<FewRowsMemory<kDim>*>(shared);
  WaitForInputs();
  const int split = static_cast<int>(blockIdx.x), splits = static_cast<int>(gridDim.x);
  const int head = static_cast<int>(blockIdx.y);
  const Sequence sequence(call, static_cast<int>(blockIdx.z));
  if (sequence.q_len == 0 || sequence.q_len > kFewRows) return;
  const int split_keys = splits == 1 ? sequence.kv_len : SplitKeys(sequence.kv_len, splits);
  if (split > 0 && split * split_keys >= sequence.kv_len) return;

  FewRowsWarp<T, kDim> warp(call, sequence, head);
  warp.Run(split * split_keys, min((split + 1) * split_keys, sequence.kv_len));
  const int w = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp.Row(half);
    if (row >= sequence.q_len) continue;
    memory.most[w][row] = warp.most(half);
    memory.sum[w][row] = warp.sum(half);
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        memory.out[w][row][warp.Channel(n, e)] = warp.out(n, e);
      }
    }
  }
  __syncthreads();

  const int64_t item =
      ((static_cast<int64_t>(sequence.index) * call.heads + head) * splits + split) * kFewRows;
  T* out = static_cast<T*>(call.out) + head * call.out_head;
  for (int i = static_cast<int>(threadIdx.x); i < sequence.q_len * kDim; i += kThreads) {
    const int row = i / kDim, channel = i % kDim;
    float most = memory.most[0][row];
#pragma unroll
    for (int from = 1; from < kWarps; ++from) most = fmaxf(most, memory.most[from][row]);
    float total = 0.0f, value = 0.0f;
#pragma unroll
    for (int from = 0; from < kWarps; ++from) {
      const float share = Share(memory.most[from][row], most);
      total = fmaf(share, memory.sum[from][row], total);
      value = fmaf(share, memory.out[from][row][channel], value);
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
  constexpr int kSharedBytes = sizeof(FewRowsMemory<kDim>);
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
