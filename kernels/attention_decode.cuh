// One warp's share of attention_decode.cu: keys and values go from memory to registers in the order
// in which mma.sync wants them, some steps ahead; what the kernel before does not write is asked
// for while that one still runs.
#pragma once

#include <climits>

#include "kernels/attention_call.cuh"
#include "kernels/mma.cuh"

namespace quintet::cuda {

constexpr int kStepKeys = 16;   // of one step of a warp
constexpr int kStages = 3;      // steps of a warp that are in flight or being used
constexpr float kSlack = 8.0f;  // in units of log2: how far scores may exceed their base

// What some of an item's keys come to: of each query the weighted sum of values and the sum of
// weights 2^(score - base).
template <int kDim>
struct alignas(16) PartialResult {
  float out[kFewRows][kDim + 4];
  float base[kFewRows], sum[kFewRows];  // base -inf: no key was seen
};

// A warp's keys and values on their way: rows whose 16-byte pieces are permuted so that neither
// copies, nor 16-byte reads of four pieces of two rows, nor ldmatrix meet a bank twice. Afterwards
// the place of the warp's results.
template <int kDim>
union alignas(16) WarpMemory {
  static constexpr int kPieces = kDim / 8;  // of a row, 16 bytes each
  // A permutation of 0..7 for any eight rows; alike for rows 8 apart, and Swizzle(a + b) =
  // Swizzle(a) ^ Swizzle(b) where a and b have no bit in common.
  __device__ static constexpr int Swizzle(int key) { return (key & 1) << 2 | (key >> 1 & 3); }
  struct Rows {
    uint4 pieces[kStepKeys * kPieces];
  };
  struct Step {
    Rows k, v;
  } steps[kStages];
  PartialResult<kDim> result;
};

// What a warp works on: steps of a sequence's keys that begin at `begin`, `begin + stride`, .. .
struct WarpKeys {
  int sequence, head, begin, stride;
};

// Queries are columns here, keys and channels the 16 rows of mma.sync: eight queries a tile.
template <typename T, int kDim, int kTiles>
class FewRowsWarp {
  using Memory = WarpMemory<kDim>;
  static constexpr int kBlocks = kDim / 32;  // of 32 channels: a 16-byte piece of each of 4 lanes
  static constexpr int kPieces = Memory::kPieces;
  static constexpr int kRowsAtOnce = 32 / kPieces;

 public:
  // Tables are read at once.
  __device__ FewRowsWarp(const AttentionCall& call, Memory& memory, const WarpKeys& keys)
      : call_(call),
        memory_(memory),
        key_rows_(call, keys.sequence),
        head_(keys.head),
        begin_(keys.begin),
        stride_(keys.stride) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) rows_[i] = RowOfLane(begin_ + i * stride_);
    const int channel = min(Lane() % kPieces * 8, call_.head_dim - 8);
    keys_ = static_cast<const T*>(call_.k) + head_ * call_.k_head + channel;
    values_ = static_cast<const T*>(call_.v) + head_ * call_.v_head + channel;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) base_[tile][0] = base_[tile][1] = -INFINITY;
  }

  // Adds this warp's keys. What the kernel before does not write is asked for before it is done.
  __device__ void Run(const Sequence& sequence) {
    const int end = sequence.kv_len;
    const int settled = call_.fresh == FreshKeys::kNone  ? INT_MAX
                        : call_.fresh == FreshKeys::kOwn ? end - sequence.q_len
                                                         : INT_MIN;
    if (call_.bias.kind == BiasKind::kNone) {
      plain_end_ = call_.causal ? min(end, sequence.position + 1) : end;
    }
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      const int key = begin_ + i * stride_;
      if (key < settled) CopyKeys<Keys::kSettled>(i, rows_[i], key, end, settled);
    }
    if (begin_ < end) LoadBias(sequence, begin_, end);
    WaitForInputs();
    LoadQueries(sequence);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      const int key = begin_ + i * stride_;
      if (settled < key + kStepKeys) CopyKeys<Keys::kFresh>(i, rows_[i], key, end, settled);
      CommitCopies();
    }
    uint32_t row = rows_[kStages - 1];
    int stage = 0, next = kStages - 1;
    for (int key = begin_; key < end; key += stride_) {
      __syncwarp();  // every lane is done with the step whose place is taken now
      CopyKeys<Keys::kAll>(next, row, key + (kStages - 1) * stride_, end, settled);
      CommitCopies();
      if (key + kStages * stride_ < end) row = RowOfLane(key + kStages * stride_);
      WaitForCopies<kStages - 1>();
      __syncwarp();
      AddStep(memory_.steps[stage]);
      if (key + stride_ < end) LoadBias(sequence, key + stride_, end);
      next = stage;
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
  }

  // The warp's results, in place of its keys.
  __device__ void Keep(int q_len) {
    WaitForCopies<0>();
    __syncwarp();
    PartialResult<kDim>& result = memory_.result;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const float sum = AddOverKeys(sum_[tile][side]);
        const int row = Query(tile, side);
        if (row >= q_len) continue;
        result.base[row] = base_[tile][side];
        result.sum[row] = sum;
#pragma unroll
        for (int n = 0; n < kDim / 16; ++n) {
          result.out[row][n * 16 + Lane() / 4] = out_[tile][n][side];
          result.out[row][n * 16 + Lane() / 4 + 8] = out_[tile][n][2 + side];
        }
      }
    }
  }

 private:
  enum class Keys { kSettled, kFresh, kAll };

  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % 32; }
  // Query and key of scores_[tile][2 half + side], the key within its step.
  __device__ static int Query(int tile, int side) { return tile * 8 + Lane() % 4 * 2 + side; }
  __device__ static int Key(int half) { return half * 8 + Lane() / 4; }

  // Over the lanes that have the same queries.
  __device__ static float MostOverKeys(float x) {
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) {
      x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    }
    return x;
  }
  __device__ static float AddOverKeys(float x) {
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
    return x;
  }

  // The row of the lane's key of a step; any row where the sequence may have no such key.
  __device__ uint32_t RowOfLane(int key) const {
    key += Lane() % kStepKeys;
    if (key_rows_.slots == nullptr) return key_rows_.Row(key);
    return key_rows_.RowOfSlot(__ldcg(key_rows_.slots + min(key, call_.slots_len - 1)));
  }

  // Lane 4 g + t takes query g, four channels for each of mma's steps, in the order in which keys
  // are read.
  __device__ void LoadQueries(const Sequence& sequence) {
    const T* q = static_cast<const T*>(call_.q) + head_ * call_.q_head;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int query = tile * 8 + Lane() / 4;
      const T* row = q + (sequence.first_row + query) * call_.q_row + Lane() % 4 * 8;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const bool there = query < sequence.q_len && b * 32 + Lane() % 4 * 8 < call_.head_dim;
        q_[tile][b] = there ? *reinterpret_cast<const uint4*>(row + b * 32) : uint4{0, 0, 0, 0};
      }
    }
  }

  // Begins to copy those keys of a step: lanes take pieces of rows one after another. Four lanes
  // side by side ask for whole 32-byte sectors: two that share one from further apart would fetch
  // it twice. Zeros from `end` on.
  template <Keys kKeys>
  __device__ void CopyKeys(int stage, uint32_t row, int begin, int end, int settled) {
    if (begin >= end) return;
    const int first = Lane() / kPieces, piece = Lane() % kPieces;
    const bool channels = piece * 8 < call_.head_dim;
    const uint32_t row_bytes = static_cast<uint32_t>(call_.k_row * sizeof(T));
    const uint32_t to = SharedAddress(&memory_.steps[stage]) + first * kPieces * 16;
    row = begin + Lane() % kStepKeys < end ? row : 0;
#pragma unroll
    for (int at = 0; at < kStepKeys; at += kRowsAtOnce) {
      const uint64_t offset = uint64_t{__shfl_sync(0xffffffffu, row, at + first)} * row_bytes;
      const int key = begin + at + first;
      if (kKeys == Keys::kSettled && key >= settled) continue;
      if (kKeys == Keys::kFresh && key < settled) continue;
      const uint32_t place =
          to + at * kPieces * 16 + (piece ^ Memory::Swizzle(first) ^ Memory::Swizzle(at)) * 16;
      const bool valid = key < end && channels;
      CopyAsync16(place, reinterpret_cast<const char*>(keys_) + offset, valid);
      CopyAsync16(place + sizeof(typename Memory::Rows),
                  reinterpret_cast<const char*>(values_) + offset, valid);
    }
  }

  // What is added to the scores of the step at `begin`, in units of log2: -inf where the key is
  // hidden or past the end. All the same where one number can say it.
  __device__ void LoadBias(const Sequence& sequence, int begin, int end) {
    even_ = begin + kStepKeys <= plain_end_;
    bias_[0][0] = 0.0f;
    if (even_) return;
    // Made anew at every step: kept, it would take registers.
    const HeadBias bias(call_.bias, call_.causal, static_cast<int>(head_), call_.heads);
    const int lo = begin - (sequence.position + sequence.q_len - 1);
    const int hi = begin + kStepKeys - 1 - sequence.position;
    even_ = begin + kStepKeys <= end && bias.Constant(lo, hi);
    if (even_) {
      bias_[0][0] = bias.At(lo);
      return;
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      int distance[4];  // queries that are not there have some, too
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
    float scores[kTiles][4] = {}, more[kTiles][4] = {};  // two sums that do not wait for each other
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int piece = t ^ Memory::Swizzle(g) ^ 4 * b;
      const uint4 top = keys[piece], low = keys[8 * kPieces + piece];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4 q = q_[tile][b];
        Mma<T>(scores[tile], top.x, low.x, top.y, low.y, q.x, q.y);
        Mma<T>(more[tile], top.z, low.z, top.w, low.w, q.z, q.w);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[tile][e] += more[tile][e];
    }
    uint32_t weights[kTiles][2];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) Weigh(scores[tile], tile, weights[tile]);
    const int key = Lane() % 16;
    const uint32_t values = SharedAddress(step.v.pieces + key * kPieces);
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      uint32_t v[4];  // 16 channels of 16 keys
      LoadMatricesTransposed(v, values + (Lane() / 16 ^ Memory::Swizzle(key) ^ 2 * n) * 16);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        Mma<T>(out_[tile][n], v[0], v[2], v[1], v[3], weights[tile][0], weights[tile][1]);
      }
    }
  }

  // Scores of a tile become weights 2^(score - base), rounded, as fragment B.
  __device__ void Weigh(float (&scores)[4], int tile, uint32_t (&weights)[2]) {
    const float scale = call_.scale * kLog2E;
    bool high = false;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      scores[e] = fmaf(scores[e], scale, even_ ? bias_[0][0] : bias_[tile][e]);
      high |= scores[e] > base_[tile][e % 2] + kSlack;
    }
    if (__any_sync(0xffffffffu, high)) RaiseBase(scores, tile);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float base = base_[tile][e % 2];
      scores[e] = Exp2(scores[e] - (base == -INFINITY ? 0.0f : base));  // no key seen so far
      sum_[tile][e % 2] += scores[e];
    }
    weights[0] = TransposeMatrix(PackPair<T>(scores[0], scores[1]));
    weights[1] = TransposeMatrix(PackPair<T>(scores[2], scores[3]));
  }

  // A query's largest score becomes its base where it exceeds it; sums so far shrink.
  __device__ void RaiseBase(const float (&scores)[4], int tile) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      float& base = base_[tile][side];
      const float most = MostOverKeys(fmaxf(scores[side], scores[2 + side]));
      const bool raise = most > base + kSlack;
      const float shrink = raise ? Exp2(base - most) : 1.0f;
      if (raise) base = most;
      sum_[tile][side] *= shrink;
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        out_[tile][n][side] *= shrink;
        out_[tile][n][2 + side] *= shrink;
      }
    }
  }

  const AttentionCall& call_;
  Memory& memory_;
  const KeyRows key_rows_;
  const int64_t head_;
  const int begin_, stride_;

  const T* keys_;  // the lane's piece of row 0
  const T* values_;
  uint32_t rows_[kStages];
  uint4 q_[kTiles][kBlocks];
  bool even_;  // bias_[0][0] is for all
  float bias_[kTiles][4];
  float out_[kTiles][kDim / 16][4] = {};
  // Of each query, in units of log2: about the largest score so far, which is 2^0 in the sums.
  float base_[kTiles][2];
  float sum_[kTiles][2] = {};  // of weights, of this lane's keys alone
  int plain_end_ = INT_MIN;    // keys before it are seen by all queries, without a bias
};

}  // namespace quintet::cuda
