// f32 attention with fused multiply-adds, without tensor cores. A row's result has the same bits in
// every batch.
#include "kernels/attention/call.cuh"

namespace quintet::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kKeys = 64;  // keys per tile; tiles start at multiples of it

// How the threads of a CTA with kRows queries divide a tile of scores. A group of kLanes
// neighbouring threads handles kThreadRows queries; each thread of the group computes the scores of
// these queries for kThreadKeys keys.
template <int kRows>
struct F32Sizes {
  static constexpr int kLanes = kRows == 8 ? 32 : 16;
  static constexpr int kThreadRows = kRows * kLanes / kThreads;
  static constexpr int kThreadKeys = kKeys / kLanes;
};

// Shared memory of one CTA. Rows are padded to kDim + 4 floats, so that 16-byte reads of
// neighbouring rows hit different banks.
template <int kRows, int kDim>
struct F32Memory {
  float q[kRows][kDim + 4];
  float kv[kKeys][kDim + 4];  // the K tile, later the V tile
  float probs[kRows][kKeys + 4];
};

// Call is AttentionCall or LocalAttentionCall.
template <int kRows, int kDim, typename Call>
class F32Block {
  using S = F32Sizes<kRows>;
  static constexpr int kThreadDims = kDim / S::kLanes;
  static constexpr bool kLocal = std::is_same_v<Call, LocalAttentionCall>;

 public:
  __device__ F32Block(const Call& call, F32Memory<kRows, kDim>& memory, const QueryTile& query_tile,
                      int head)
      : call_(call),
        memory_(memory),
        sequence_(call, query_tile.sequence),
        bias_(call.bias, call.causal, head, call.heads),
        key_rows_(call, query_tile.sequence),
        mask_(call, query_tile.sequence),
        head_(head),
        row_(sequence_.first_row + query_tile.row),
        rows_(min(kRows, sequence_.q_len - query_tile.row)),
        position_(sequence_.position + query_tile.row) {}

  __device__ void Run() {
    KeyRange range(bias_, position_, rows_, sequence_.kv_len, kKeys);
    if constexpr (kLocal) range.Limit(position_, rows_, call_.reach, kKeys);
    LoadQueries();
#pragma unroll
    for (int r = 0; r < S::kThreadRows; ++r) max_[r] = -INFINITY;
    const float* k = static_cast<const float*>(call_.k) + head_ * call_.k_head;
    const float* v = static_cast<const float*>(call_.v) + head_ * call_.v_head;
    for (int begin = range.begin; begin < range.end; begin += kKeys) {
      const TileVisibility view = View(begin);
      if (view == TileVisibility::kNone) continue;
      __syncthreads();  // all threads have read the previous V tile
      LoadTile(k, call_.k_row, begin);
      __syncthreads();
      const bool masked = view == TileVisibility::kSome;
      ComputeProbs([&](int j, int position) {
        const int key = begin + j;
        const bool seen = key < sequence_.kv_len && !(masked && Hidden(key, position));
        return seen ? bias_.Pair(position, key) : -INFINITY;
      });
      __syncthreads();
      LoadTile(v, call_.v_row, begin);
      __syncthreads();
      AddValues();
    }
    if constexpr (kLocal) AttendGlobals();
    StoreOutput();
  }

 private:
  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % S::kLanes; }
  __device__ static int FirstRow() {
    return static_cast<int>(threadIdx.x) / S::kLanes * S::kThreadRows;
  }

  __device__ TileVisibility View(int begin) const {
    if (!mask_.any()) return TileVisibility::kAll;
    return mask_.View(begin, min(begin + kKeys, sequence_.kv_len), position_, rows_);
  }

  __device__ void LoadQueries() {
    const float* q = static_cast<const float*>(call_.q) + head_ * call_.q_head;
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kDim; i += kThreads) {
      const int r = i / kDim, c = i % kDim;
      const bool valid = r < rows_ && c < call_.head_dim;
      memory_.q[r][c] = valid ? q[(row_ + r) * call_.q_row + c] : 0.0f;
    }
  }

  __device__ void LoadTile(const float* base, int64_t stride, int begin) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * kDim; i += kThreads) {
      const int j = i / kDim, c = i % kDim;
      const bool valid = begin + j < sequence_.kv_len && c < call_.head_dim;
      memory_.kv[j][c] = valid ? base[key_rows_.Row(begin + j) * stride + c] : 0.0f;
    }
  }

  // Adds the tiles of the sequence's global keys.
  __device__ void AttendGlobals() {
    const SequenceGlobals globals(call_, sequence_.index, static_cast<int>(head_));
    const float* k = static_cast<const float*>(call_.global_k) + head_ * call_.global_k_head;
    const float* v = static_cast<const float*>(call_.global_v) + head_ * call_.global_v_head;
    for (int begin = 0; begin < globals.count(); begin += kKeys) {
      __syncthreads();  // all threads have read the previous V tile
      LoadGlobalTile(k, call_.global_k_row, globals, begin);
      __syncthreads();
      ComputeProbs([&](int j, int position) {
        const int key = begin + j;
        return key < globals.count() ? globals.At(key, globals.BlockOf(position)) : -INFINITY;
      });
      __syncthreads();
      LoadGlobalTile(v, call_.global_v_row, globals, begin);
      __syncthreads();
      AddValues();
    }
  }

  __device__ void LoadGlobalTile(const float* base, int64_t stride, const SequenceGlobals& globals,
                                 int begin) {
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * kDim; i += kThreads) {
      const int j = i / kDim, c = i % kDim;
      const bool valid = begin + j < globals.count() && c < call_.head_dim;
      memory_.kv[j][c] = valid ? base[int64_t{globals.first() + begin + j} * stride + c] : 0.0f;
    }
  }

  // One step of the online softmax: writes P of the K tile in memory_.kv to memory_.probs, and
  // rescales out_ (P V) and sum_ (row sums), which hold the sums over earlier tiles. bias(j,
  // position): what is added to the score of key j of the tile and the query at `position`, in log2
  // units; -inf if the key is hidden or does not exist.
  template <typename Bias>
  __device__ __forceinline__ void ComputeProbs(const Bias& bias) {
    float scores[S::kThreadRows][S::kThreadKeys] = {};
#pragma unroll 4
    for (int c = 0; c < kDim; c += 4) {
      float4 k[S::kThreadKeys];
#pragma unroll
      for (int j = 0; j < S::kThreadKeys; ++j)
        k[j] = Vector(memory_.kv[Lane() + j * S::kLanes] + c);
#pragma unroll
      for (int r = 0; r < S::kThreadRows; ++r) {
        const float4 q = Vector(memory_.q[FirstRow() + r] + c);
#pragma unroll
        for (int j = 0; j < S::kThreadKeys; ++j) {
          float sum = scores[r][j];
          sum = fmaf(q.x, k[j].x, sum);
          sum = fmaf(q.y, k[j].y, sum);
          sum = fmaf(q.z, k[j].z, sum);
          scores[r][j] = fmaf(q.w, k[j].w, sum);
        }
      }
    }
    const float scale = call_.scale * kLog2E;
#pragma unroll
    for (int r = 0; r < S::kThreadRows; ++r) {
      const int position = position_ + FirstRow() + r;
      float most = max_[r];
#pragma unroll
      for (int j = 0; j < S::kThreadKeys; ++j) {
        scores[r][j] = fmaf(scores[r][j], scale, bias(Lane() + j * S::kLanes, position));
        most = fmaxf(most, scores[r][j]);
      }
#pragma unroll
      for (int step = S::kLanes / 2; step > 0; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
      }
      const float base = most == -INFINITY ? 0.0f : most;  // -inf: no key seen so far
      const float rescale = exp2f(max_[r] - base);
      max_[r] = most;
      sum_[r] *= rescale;
#pragma unroll
      for (int d = 0; d < kThreadDims; ++d) out_[r][d] *= rescale;
#pragma unroll
      for (int j = 0; j < S::kThreadKeys; ++j) {
        memory_.probs[FirstRow() + r][Lane() + j * S::kLanes] = exp2f(scores[r][j] - base);
      }
    }
  }

  __device__ bool Hidden(int key, int position) const {
    return mask_.Column(key).View(position, position + 1) == TileVisibility::kNone;
  }

  // Adds P V to out_ and P to the row sums, both in ascending key order; hence the bits of a row do
  // not depend on kRows.
  __device__ void AddValues() {
    for (int j = 0; j < kKeys; j += 4) {
      float4 w[S::kThreadRows];
#pragma unroll
      for (int r = 0; r < S::kThreadRows; ++r) {
        w[r] = Vector(memory_.probs[FirstRow() + r] + j);
        sum_[r] = (((sum_[r] + w[r].x) + w[r].y) + w[r].z) + w[r].w;
      }
#pragma unroll
      for (int d = 0; d < kThreadDims; ++d) {
        const int c = Lane() + d * S::kLanes;
        const float v[4] = {memory_.kv[j][c], memory_.kv[j + 1][c], memory_.kv[j + 2][c],
                            memory_.kv[j + 3][c]};
#pragma unroll
        for (int r = 0; r < S::kThreadRows; ++r) {
          float sum = fmaf(w[r].x, v[0], out_[r][d]);
          sum = fmaf(w[r].y, v[1], sum);
          sum = fmaf(w[r].z, v[2], sum);
          out_[r][d] = fmaf(w[r].w, v[3], sum);
        }
      }
    }
  }

  __device__ void StoreOutput() {
    float* out = static_cast<float*>(call_.out) + head_ * call_.out_head;
    __syncthreads();  // out may alias q, which may still be read if the sequence has no keys
#pragma unroll
    for (int r = 0; r < S::kThreadRows; ++r) {
      const int row = FirstRow() + r;
      if (row >= rows_) continue;
      const float scale = sum_[r] > 0.0f ? 1.0f / sum_[r] : 0.0f;
#pragma unroll
      for (int d = 0; d < kThreadDims; ++d) {
        const int c = Lane() + d * S::kLanes;
        if (c < call_.head_dim) out[(row_ + row) * call_.out_row + c] = out_[r][d] * scale;
      }
    }
  }

  __device__ static float4 Vector(const float* p) { return *reinterpret_cast<const float4*>(p); }

  const Call& call_;
  F32Memory<kRows, kDim>& memory_;
  const Sequence sequence_;
  const HeadBias bias_;
  const KeyRows key_rows_;
  const SequenceMask mask_;
  const int64_t head_, row_;  // row_: first query row of the tile in call.q
  const int rows_, position_;

  float out_[S::kThreadRows][kThreadDims] = {};
  float max_[S::kThreadRows], sum_[S::kThreadRows] = {};

  static_assert(S::kThreadRows >= 1 && kThreadDims >= 1);
};

// out = softmax(scale q k^T + bias + mask) v for one head and up to kRows queries of a sequence.
// Shapes: q, out [rows, heads, head_dim]; k, v rows of head_dim values, all f32.
// Math: f32 fused multiply-adds. A score sums over channels in order; row sums and P V sum over
// keys in order; the online softmax uses tiles of 64 keys, counted from the sequence's first key.
// Therefore the bits of a row depend only on its query, keys and position, not on kRows. The result
// of a row that sees no key is 0.
// Mapping: grid (query tiles, heads). One shared buffer holds the K tile, then the V tile; other
// CTAs on the same SM hide the load latency.
// Bound: 4 * rows * kv_len * head_dim FLOP at 67 TFLOP/s (H200); for kRows = 8, reading K and V
// once.
// Test: tests/kernels/attention/attention_test.cc, tests/kernels/attention/global_keys_test.cc.
template <int kRows, int kDim, typename Call>
__global__ void __launch_bounds__(kThreads) AttendF32Kernel(const __grid_constant__ Call call) {
  extern __shared__ __align__(16) unsigned char shared[];
  WaitOnDependentGrids();
  const QueryTile query_tile(call, static_cast<int>(blockIdx.x), kRows);
  if (query_tile.sequence < 0) return;
  F32Block<kRows, kDim, Call>(call, *reinterpret_cast<F32Memory<kRows, kDim>*>(shared), query_tile,
                              static_cast<int>(blockIdx.y))
      .Run();
}

template <int kRows, int kDim, typename Call>
void LaunchF32(const Call& call, int64_t rows_total, CudaStream& stream) {
  constexpr int kSharedBytes = sizeof(F32Memory<kRows, kDim>);
  const int64_t blocks = MaxQueryTiles(rows_total, call.sequences, kRows);
  Launch(stream, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(call.heads)),
         dim3(kThreads), kSharedBytes, AttendF32Kernel<kRows, kDim, Call>, call);
}

}  // namespace

void AttendF32(const AttentionCall& call, int64_t rows_total, int max_q_len, CudaStream& stream) {
  const bool few = max_q_len <= 8;
  if (call.head_dim <= 64) {
    few ? LaunchF32<8, 64>(call, rows_total, stream) : LaunchF32<64, 64>(call, rows_total, stream);
  } else if (call.head_dim <= 128) {
    few ? LaunchF32<8, 128>(call, rows_total, stream)
        : LaunchF32<64, 128>(call, rows_total, stream);
  } else {
    few ? LaunchF32<8, 256>(call, rows_total, stream)
        : LaunchF32<64, 256>(call, rows_total, stream);
  }
}

void AttendF32Local(const LocalAttentionCall& call, int64_t rows_total, CudaStream& stream) {
  if (call.head_dim <= 64) return LaunchF32<64, 64>(call, rows_total, stream);
  if (call.head_dim <= 128) return LaunchF32<64, 128>(call, rows_total, stream);
  LaunchF32<64, 256>(call, rows_total, stream);
}

}  // namespace quintet::cuda
