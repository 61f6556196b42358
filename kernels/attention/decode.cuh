// One warp of attention/decode.cu: copies K and V into shared memory a few steps ahead (cp.async),
// in the layout that mma.sync reads without bank conflicts. Data that the previous kernel does not
// write is loaded while that kernel still runs (programmatic dependent launch).
#pragma once

#include <climits>

#include "kernels/attention/call.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/runtime/e4m3.cuh"

namespace quintet::cuda {

constexpr int kStepKeys = 16;  // keys per step of a warp
constexpr int kStages = 3;     // steps of a warp in shared memory: one in use, the others in flight
// Lazy rescaling: a score (in log2 units) may exceed its row's ref_max by this much before ref_max
// is raised.
constexpr float kRescaleThreshold = 8.0f;

// Softmax result over some of the keys of one (sequence, head). For each query: `out`, the sum of P
// V; `sum`, the row sum of P = 2^(score - ref_max).
template <int kDim>
struct alignas(16) PartialResult {
  float out[kFewRows][kDim + 4];
  float ref_max[kFewRows], sum[kFewRows];  // ref_max is -inf if no key was seen
};

// Shared memory of one warp: first its K and V rows, after the mainloop its partial result. The
// 16-byte pieces of the rows are swizzled to avoid bank conflicts in cp.async, in ldmatrix, and in
// reads of eight lanes from two rows (four pieces from each row). Kv: type of a value in a row.
template <int kDim, typename Kv>
union alignas(16) WarpMemory {
  static constexpr int kPieces = kDim * static_cast<int>(sizeof(Kv)) / 16;  // per row, of 16 bytes
  // A K or V row in shared memory consists of 16-byte pieces. Piece p of row `key` (its index among
  // the kStepKeys rows of one pipeline step) is stored at position p ^ Swizzle(key). Swizzle(key)
  // takes all values 0..7 over eight consecutive rows and repeats every eight rows. Rows of four
  // pieces take all values 0..3 twice, and two adjacent rows, which fill all banks, have the same.
  // Swizzle(a + b) = Swizzle(a) ^ Swizzle(b) if a and b have no bit in common.
  __device__ static constexpr int Swizzle(int key) {
    return ((key & 1) << 2 | (key >> 1 & 3)) & (kPieces - 1);
  }
  struct Rows {
    uint4 pieces[kStepKeys * kPieces];
  };
  struct Step {
    Rows k, v;
  } steps[kStages];
  PartialResult<kDim> result;
};

// A warp's share of the keys of one (sequence, head): the steps of kStepKeys keys that start at
// keys `begin`, `begin + stride`, and so on.
struct WarpKeys {
  int sequence, head, begin, stride;
};

// One warp's share of the attention of one (sequence, head). The MMA operands are transposed: the 8
// columns of mma.sync are queries, and its 16 rows are keys in Q K^T and channels in P V. kTiles:
// number of tiles of eight queries.
// T: type of q and out. Kv: type of K and V, T or uint8_t (e4m3). e4m3 values are converted to f16,
// which is exact and takes one instruction for two values, so the MMAs have f16 operands then. The
// conversion of bf16 queries to f16 loses nothing between 2^-14 and 65504; larger magnitudes become
// 65504.
template <typename T, int kDim, int kTiles, typename Kv>
class FewRowsWarp {
  using Memory = WarpMemory<kDim, Kv>;
  static constexpr bool kBytes = sizeof(Kv) == 1;
  using Operand = std::conditional_t<kBytes, __half, T>;
  // Q and K: of a row of channels, four lanes hold one 16-byte piece of K each, then the next. A
  // piece has eight channels (e4m3: 16), so lane t has channels 8 t to 8 t + 7 of each block of 32
  // (e4m3: 16 t to 16 t + 15 of each block of 64). q_ holds them in vectors of eight channels.
  static constexpr int kVectors = kDim / 32;
  static constexpr int kPieces = Memory::kPieces;
  static constexpr int kPieceChannels = 16 / static_cast<int>(sizeof(Kv));
  static constexpr int kRowsAtOnce = 32 / kPieces;

 public:
  // This constructor reads the slot table and kv_offsets before WaitOnDependentGrids; hence the
  // previous kernel must not write them.
  __device__ FewRowsWarp(const AttentionCall& call, Memory& memory, const WarpKeys& keys)
      : call_(call),
        memory_(memory),
        key_rows_(call, keys.sequence),
        head_(keys.head),
        begin_(keys.begin),
        stride_(keys.stride) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) rows_[i] = RowOfLane(begin_ + i * stride_);
    const int channel = min(Lane() % kPieces * kPieceChannels, call_.head_dim - kPieceChannels);
    keys_ = static_cast<const Kv*>(call_.k) + head_ * call_.k_head + channel;
    values_ = static_cast<const Kv*>(call_.v) + head_ * call_.v_head + channel;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) ref_max_[tile][0] = ref_max_[tile][1] = -INFINITY;
  }

  // Mainloop over this warp's keys. K and V rows that the previous kernel does not write are loaded
  // before WaitOnDependentGrids.
  __device__ void Run(const Sequence& sequence) {
    const int end = sequence.kv_len;
    const int fresh_begin = call_.fresh == FreshKeys::kNone  ? INT_MAX
                            : call_.fresh == FreshKeys::kOwn ? end - sequence.q_len
                                                             : INT_MIN;
    if (call_.bias.kind == BiasKind::kNone) {
      plain_end_ = call_.causal ? min(end, sequence.position + 1) : end;
    }
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      const int key = begin_ + i * stride_;
      if (key < fresh_begin) CopyKeys<Keys::kUnchanged>(i, rows_[i], key, end, fresh_begin);
    }
    if (begin_ < end) LoadBias(sequence, begin_, end);
    WaitOnDependentGrids();
    LoadQueries(sequence);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      const int key = begin_ + i * stride_;
      if (fresh_begin < key + kStepKeys) CopyKeys<Keys::kFresh>(i, rows_[i], key, end, fresh_begin);
      CpAsyncCommit();
    }
    uint32_t row = rows_[kStages - 1];
    int stage = 0, next = kStages - 1;
    for (int key = begin_; key < end; key += stride_) {
      __syncwarp();  // every lane has finished the step whose buffer is overwritten now
      CopyKeys<Keys::kAll>(next, row, key + (kStages - 1) * stride_, end, fresh_begin);
      CpAsyncCommit();
      if (key + kStages * stride_ < end) row = RowOfLane(key + kStages * stride_);
      CpAsyncWait<kStages - 1>();
      __syncwarp();
      AddStep(memory_.steps[stage]);
      if (key + stride_ < end) LoadBias(sequence, key + stride_, end);
      next = stage;
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
  }

  // Stores the warp's partial result in the shared memory of its K and V rows, which it overwrites.
  __device__ void StoreResult(int q_len) {
    CpAsyncWait<0>();
    __syncwarp();
    PartialResult<kDim>& result = memory_.result;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const float sum = SumOverKeys(sum_[tile][side]);
        const int row = Query(tile, side);
        if (row >= q_len) continue;
        result.ref_max[row] = ref_max_[tile][side];
        result.sum[row] = sum;
#pragma unroll
        for (int n = 0; n < kDim / 16; ++n) {
          float* const out = result.out[row] + n * 16;
          out[Channel(0)] = out_[tile][n][side];
          out[Channel(1)] = out_[tile][n][2 + side];
        }
      }
    }
  }

 private:
  enum class Keys { kUnchanged, kFresh, kAll };

  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % 32; }
  // Element [tile][2 half + side] of this lane's scores belongs to query Query(tile, side) and to
  // key Key(half) among the kStepKeys keys of the current pipeline step.
  __device__ static int Query(int tile, int side) { return tile * 8 + Lane() % 4 * 2 + side; }
  __device__ static int Key(int half) { return half * 8 + Lane() / 4; }
  // Elements [tile][n][2 half + side] of out_ belong to channel 16 n + Channel(half).
  __device__ static int Channel(int half) {
    return kBytes ? Lane() / 4 * 2 + half : half * 8 + Lane() / 4;
  }

  // MaxOverKeys and SumOverKeys combine x over all lanes that hold scores of the same queries, and
  // return the maximum or the sum to each of these lanes.
  __device__ static float MaxOverKeys(float x) {
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) {
      x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    }
    return x;
  }
  __device__ static float SumOverKeys(float x) {
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
    return x;
  }

  // Row index in K and V (see KeyRows) of one key of the step that starts at `key`: lane l looks up
  // the key at index l % kStepKeys of the step. Arbitrary if that key is past the sequence's end;
  // CopyKeys then ignores it.
  __device__ uint32_t RowOfLane(int key) const {
    key += Lane() % kStepKeys;
    if (key_rows_.slots == nullptr) return key_rows_.Row(key);
    return key_rows_.RowOfSlot(__ldcg(key_rows_.slots + min(key, call_.slots_len - 1)));
  }

  // Loads Q as B fragments of mma.sync. In each tile of eight queries, lane 4 g + t holds the
  // channels of query g that the lane reads of K.
  __device__ void LoadQueries(const Sequence& sequence) {
    const T* q = static_cast<const T*>(call_.q) + head_ * call_.q_head;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int query = tile * 8 + Lane() / 4;
      const T* row = q + (sequence.first_row + query) * call_.q_row;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int channel =
            kBytes ? i / 2 * 64 + Lane() % 4 * 16 + i % 2 * 8 : i * 32 + Lane() % 4 * 8;
        const bool there = query < sequence.q_len && channel < call_.head_dim;
        q_[tile][i] =
            there ? AsOperands(*reinterpret_cast<const uint4*>(row + channel)) : uint4{0, 0, 0, 0};
      }
    }
  }
  __device__ static uint4 AsOperands(uint4 eight) {
    if constexpr (!std::is_same_v<T, Operand>) {
      constexpr float kLargest = 65504.0f;
      const auto limit = [](float x) {  // unlike fminf, keeps NaN
        return x > kLargest ? kLargest : x < -kLargest ? -kLargest : x;
      };
      const auto convert = [&](uint32_t pair) {
        const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
        return PackPair<__half>(limit(v.x), limit(v.y));
      };
      return {convert(eight.x), convert(eight.y), convert(eight.z), convert(eight.w)};
    }
    return eight;
  }

  // Starts the asynchronous copies of the K and V rows of one step. The previous kernel may still
  // be writing the keys from fresh_begin on. kKeys selects which of the step's keys are copied:
  // all, only those before fresh_begin, or only those from fresh_begin on. Rows of keys from `end`
  // on become zeros. Neighbouring lanes copy neighbouring 16-byte pieces, because two distant lanes
  // that share a 32-byte sector would fetch it twice.
  template <Keys kKeys>
  __device__ void CopyKeys(int stage, uint32_t row, int begin, int end, int fresh_begin) {
    if (begin >= end) return;
    const int first = Lane() / kPieces, piece = Lane() % kPieces;
    const bool channels = piece * kPieceChannels < call_.head_dim;
    const uint32_t row_bytes = static_cast<uint32_t>(call_.k_row * sizeof(Kv));
    const uint32_t to = SharedAddress(&memory_.steps[stage]) + first * kPieces * 16;
    row = begin + Lane() % kStepKeys < end ? row : 0;
#pragma unroll
    for (int at = 0; at < kStepKeys; at += kRowsAtOnce) {
      const uint64_t offset = uint64_t{__shfl_sync(0xffffffffu, row, at + first)} * row_bytes;
      const int key = begin + at + first;
      if (kKeys == Keys::kUnchanged && key >= fresh_begin) continue;
      if (kKeys == Keys::kFresh && key < fresh_begin) continue;
      const uint32_t place =
          to + at * kPieces * 16 + (piece ^ Memory::Swizzle(first) ^ Memory::Swizzle(at)) * 16;
      const bool valid = key < end && channels;
      CpAsync16(place, reinterpret_cast<const char*>(keys_) + offset, valid);
      CpAsync16(place + sizeof(typename Memory::Rows),
                reinterpret_cast<const char*>(values_) + offset, valid);
    }
  }

  // Computes the bias, in log2 units, of the (query, key) pairs of the step that starts at key
  // `begin`: -inf where the key is hidden or at or past `end`. If all pairs have the same bias,
  // sets uniform_bias_ and stores that bias in bias_[0][0] only.
  __device__ void LoadBias(const Sequence& sequence, int begin, int end) {
    uniform_bias_ = begin + kStepKeys <= plain_end_;
    bias_[0][0] = 0.0f;
    if (uniform_bias_) return;
    // The HeadBias is constructed anew in every step, because keeping it would cost registers.
    const HeadBias bias(call_.bias, call_.causal, static_cast<int>(head_), call_.heads);
    const int lo = begin - (sequence.position + sequence.q_len - 1);
    const int hi = begin + kStepKeys - 1 - sequence.position;
    uniform_bias_ = begin + kStepKeys <= end && bias.Constant(lo, hi);
    if (uniform_bias_) {
      bias_[0][0] = bias.At(lo);
      return;
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      int distance[4];  // also computed for queries past q_len
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        distance[e] = begin + Key(e / 2) - (sequence.position + Query(tile, e % 2));
      }
      bias.At(distance, bias_[tile]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (begin + Key(e / 2) >= end) bias_[tile][e] = -INFINITY;
      }
    }
  }

  __device__ void AddStep(const typename Memory::Step& step) {
    const int g = Lane() / 4, t = Lane() % 4;
    const uint4* keys = step.k.pieces + g * kPieces;
    float scores[kTiles][4] = {}, more[kTiles][4] = {};  // two independent accumulation chains
#pragma unroll
    for (int b = 0; b < kPieces / 4; ++b) {
      const int piece = t ^ Memory::Swizzle(g) ^ 4 * b;
      const uint4 top = keys[piece], low = keys[8 * kPieces + piece];
      if constexpr (kBytes) {
        const auto convert = [](uint32_t x, uint32_t y) {
          return EightFromE4m3<Operand>(uint2{x, y});
        };
        MultiplyEight(2 * b, convert(top.x, top.y), convert(low.x, low.y), scores, more);
        MultiplyEight(2 * b + 1, convert(top.z, top.w), convert(low.z, low.w), scores, more);
      } else {
        MultiplyEight(b, top, low, scores, more);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[tile][e] += more[tile][e];
    }
    uint32_t probs[kTiles][2];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) ComputeProbs(scores[tile], tile, probs[tile]);
    const int key = Lane() % 16;
    const uint32_t values = SharedAddress(step.v.pieces + key * kPieces);
#pragma unroll
    for (int i = 0; i < kPieces / 2; ++i) {
      uint32_t v[4];  // two pieces of 16 keys
      LoadMatricesTransposed(v, values + (Lane() / 16 ^ Memory::Swizzle(key) ^ 2 * i) * 16);
      if constexpr (kBytes) {
        AddBytes(2 * i, v[0], v[1], probs);
        AddBytes(2 * i + 1, v[2], v[3], probs);
      } else {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          Mma<T>(out_[tile][i], v[0], v[2], v[1], v[3], probs[tile][0], probs[tile][1]);
        }
      }
    }
  }

  // Adds the products of eight channels of K and vector i of Q. top and low: the channels of keys g
  // and g + 8 of the step.
  __device__ void MultiplyEight(int i, const uint4& top, const uint4& low,
                                float (&scores)[kTiles][4], float (&more)[kTiles][4]) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint4 q = q_[tile][i];
      Mma<Operand>(scores[tile], top.x, low.x, top.y, low.y, q.x, q.y);
      Mma<Operand>(more[tile], top.z, low.z, top.w, low.w, q.z, q.w);
    }
  }

  // out_[..][n] += P V for the 16 channels of a piece of e4m3. The lane's words of the transposed
  // matrices of keys 0 to 7 (first) and 8 to 15 (second) have channels 2 g and 2 g + 1 of keys 2 t
  // and 2 t + 1.
  __device__ void AddBytes(int n, uint32_t first, uint32_t second,
                           const uint32_t (&probs)[kTiles][2]) {
    constexpr uint32_t kByChannel = 0x3120;  // of bytes (key, channel): 00, 10, 01, 11
    first = __byte_perm(first, 0, kByChannel);
    second = __byte_perm(second, 0, kByChannel);
    const uint32_t v[4] = {HalfPairOf(first), HalfPairOf(first >> 16), HalfPairOf(second),
                           HalfPairOf(second >> 16)};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      Mma<Operand>(out_[tile][n], v[0], v[1], v[2], v[3], probs[tile][0], probs[tile][1]);
    }
  }

  // Turns the raw Q K^T of a tile of eight queries into P = 2^(scale * score + bias - ref_max),
  // adds P to the row sums, and returns P rounded to Operand in `probs`, as a B fragment.
  __device__ void ComputeProbs(float (&scores)[4], int tile, uint32_t (&probs)[2]) {
    const float scale = call_.scale * kLog2E;
    bool high = false;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      scores[e] = fmaf(scores[e], scale, uniform_bias_ ? bias_[0][0] : bias_[tile][e]);
      high |= scores[e] > ref_max_[tile][e % 2] + kRescaleThreshold;
    }
    if (__any_sync(0xffffffffu, high)) RaiseRefMax(scores, tile);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float ref_max = ref_max_[tile][e % 2];
      // While a query has seen no key, its ref_max and all its scores are -inf. Subtracting 0
      // instead of ref_max then gives P = 0.
      scores[e] = Exp2(scores[e] - (ref_max == -INFINITY ? 0.0f : ref_max));
      sum_[tile][e % 2] += scores[e];
    }
    probs[0] = TransposeMatrix(PackPair<Operand>(scores[0], scores[1]));
    probs[1] = TransposeMatrix(PackPair<Operand>(scores[2], scores[3]));
  }

  // For each query whose largest score exceeds its ref_max by more than kRescaleThreshold: raises
  // ref_max to that score and rescales the query's row sum and P V sums.
  __device__ void RaiseRefMax(const float (&scores)[4], int tile) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      float& ref_max = ref_max_[tile][side];
      const float largest = MaxOverKeys(fmaxf(scores[side], scores[2 + side]));
      const bool raise = largest > ref_max + kRescaleThreshold;
      const float rescale = raise ? Exp2(ref_max - largest) : 1.0f;
      if (raise) ref_max = largest;
      sum_[tile][side] *= rescale;
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        out_[tile][n][side] *= rescale;
        out_[tile][n][2 + side] *= rescale;
      }
    }
  }

  const AttentionCall& call_;
  Memory& memory_;
  const KeyRows key_rows_;
  const int64_t head_;
  const int begin_, stride_;

  const Kv* keys_;  // address of the lane's piece of row 0
  const Kv* values_;
  uint32_t rows_[kStages];
  uint4 q_[kTiles][kVectors];
  bool uniform_bias_;  // bias_[0][0] applies to all pairs of the step
  float bias_[kTiles][4];
  float out_[kTiles][kDim / 16][4] = {};
  // Per query, in log2 units: the row maximum when ref_max_ was last raised. P is computed relative
  // to ref_max_.
  float ref_max_[kTiles][2];
  float sum_[kTiles][2] = {};  // row sums of P, over this lane's keys only
  int plain_end_ = INT_MIN;    // all queries see the keys before it, and there is no bias
};

}  // namespace quintet::cuda
