// bf16 / f16 attention of many queries, with tensor-core instructions available from sm_80 on.
#include "kernels/attention/call.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/runtime/e4m3.cuh"

namespace quintet::cuda {
namespace {

// Tile shape of a CTA. kDim is head_dim rounded up to 64, 128 or 256.
template <int kDim>
struct TileSizes {
  static constexpr int kWarps = kDim == 128 ? 8 : 4;
  static constexpr int kRowTiles = kDim == 64 ? 2 : 1;  // MMA row tiles of 16 queries per warp
  static constexpr int kRows = kWarps * kRowTiles * 16;
  static constexpr int kKeys = kDim == 256 ? 32 : 64;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kStages = 2;
  // Whether a warp keeps its Q fragments in registers. It does so only if kDim is 128; for 64 and
  // 256 there are not enough registers, and the fragments are read from shared memory each time.
  static constexpr bool kKeepQueries = kDim == 128;
  static constexpr int kStrip = kRows + kKeys;  // one bias value per diagonal of a tile
};

// Shared memory of one CTA. Each row is stored in 16-byte pieces at swizzled positions: the pieces
// with the same index in eight consecutive rows are in different banks.
template <typename T, int kDim>
struct TileMemory {
  using S = TileSizes<kDim>;
  T q[S::kRows * kDim];
  T k[S::kStages][S::kKeys * kDim];
  T v[S::kStages][S::kKeys * kDim];
  float strip[S::kStages][S::kStrip];
};

template <int kDim>
__device__ int Swizzled(int row, int piece) {
  return row * kDim + ((piece ^ (row & 7)) * 8);
}

// Copies 16 bytes of a row of `head_dim` values to shared memory: the eight channels from piece * 8
// on. Channels past the end of the row become zeros; if !valid, all eight become zeros. vectors:
// the row is 16-byte aligned, so cp.async can be used.
template <typename T>
__device__ void CopyPiece(T* shared, const T* row, int piece, int head_dim, bool valid,
                          bool vectors) {
  if (vectors) {
    valid = valid && piece * 8 < head_dim;
    CpAsync16(SharedAddress(shared), valid ? row + piece * 8 : row, valid);
    return;
  }
  T values[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    values[i] = valid && piece * 8 + i < head_dim ? row[piece * 8 + i] : FromF32<T>(0.0f);
  }
  *reinterpret_cast<uint4*>(shared) = *reinterpret_cast<const uint4*>(values);
}

// Loads the eight channels of a row of e4m3 from piece * 8 on; zeros as CopyPiece writes them.
__device__ __forceinline__ uint2 LoadE4m3Piece(const uint8_t* row, int piece, int head_dim,
                                               bool valid, bool vectors) {
  uint2 bytes = {0, 0};
  if (!valid || piece * 8 >= head_dim) return bytes;
  if (vectors) return *reinterpret_cast<const uint2*>(row + piece * 8);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (piece * 8 + i >= head_dim) break;
    (i < 4 ? bytes.x : bytes.y) |= static_cast<uint32_t>(row[piece * 8 + i]) << i % 4 * 8;
  }
  return bytes;
}

// One thread's share of a CTA's work on a query tile. kFire is a template parameter, because FIRE's
// network is long code that slows down kernels that do not need it. Call is AttentionCall or
// LocalAttentionCall. Kv is the type of K and V: T, or uint8_t for the e4m3 of a KV cache, which is
// converted to T on the way to shared memory.
template <typename T, int kDim, bool kFire, typename Call, typename Kv>
class TiledBlock {
  using S = TileSizes<kDim>;
  static constexpr bool kLocal = std::is_same_v<Call, LocalAttentionCall>;
  static constexpr int kPieces = kDim / 8;  // 16-byte pieces per row
  static constexpr int kRowStep = S::kThreads / kPieces;
  static constexpr int kKeyGroups = S::kKeys / 8;
  static constexpr int kDimGroups = kDim / 8;

 public:
  __device__ TiledBlock(const Call& call, TileMemory<T, kDim>& memory, const QueryTile& query_tile,
                        int head)
      : call_(call),
        memory_(memory),
        sequence_(call, query_tile.sequence),
        key_rows_(call, query_tile.sequence),
        mask_(call, query_tile.sequence),
        head_(head),
        row_(sequence_.first_row + query_tile.row),
        rows_(min(S::kRows, sequence_.q_len - query_tile.row)),
        position_(sequence_.position + query_tile.row) {}

  __device__ void Run() {
    KeyRange range(Bias(), position_, rows_, sequence_.kv_len, S::kKeys);
    if constexpr (kLocal) range.Limit(position_, rows_, call_.reach, S::kKeys);
    LoadQueries();
    const int first = NextTile(range.begin, range.end);
    if (first < range.end) LoadTile(first, 0);
    CpAsyncCommit();
    int stage = 0;
    for (int begin = first, next; begin < range.end; begin = next, stage ^= 1) {
      CpAsyncWait<0>();
      __syncthreads();  // this tile has arrived, and every warp has finished the previous one
      if (begin == first) KeepQueries();
      next = NextTile(begin + S::kKeys, range.end);
      if (next < range.end) LoadTile(next, stage ^ 1);
      CpAsyncCommit();
      Scores(stage);
      AddTile(begin, stage);
    }
    if constexpr (kLocal) AttendGlobals();
    CpAsyncWait<0>();
    __syncthreads();  // if there are no keys, the copies of the queries finish only here
    StoreOutput();
  }

 private:
  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % 32; }
  // Returns the attention bias of this head. The object is constructed at each use, because a
  // member would occupy registers that the MMAs need.
  __device__ HeadBias Bias() const {
    return HeadBias(call_.bias, call_.causal, static_cast<int>(head_), call_.heads);
  }
  // First query of this thread's warp within the query tile.
  __device__ static int WarpRow() {
    return static_cast<int>(threadIdx.x) / 32 * (S::kRowTiles * 16);
  }

  __device__ TileVisibility View(int begin) const {
    return mask_.View(begin, min(begin + S::kKeys, sequence_.kv_len), position_, rows_);
  }
  // Searches the K/V tiles from the one at key `begin` on. Returns the first key of the first tile
  // with a (query, key) pair that the mask (mask.h) leaves visible, or a number >= end if there is
  // none.
  __device__ int NextTile(int begin, int end) const {
    if (!mask_.any()) return begin;
    while (begin < end && View(begin) == TileVisibility::kNone) begin += S::kKeys;
    return begin;
  }

  __device__ void LoadQueries() {
    const T* q = static_cast<const T*>(call_.q) + head_ * call_.q_head;
    const int piece = static_cast<int>(threadIdx.x) % kPieces;
    for (int r = static_cast<int>(threadIdx.x) / kPieces; r < S::kRows; r += kRowStep) {
      const T* row = q + (row_ + (r < rows_ ? r : 0)) * call_.q_row;
      CopyPiece(memory_.q + Swizzled<kDim>(r, piece), row, piece, call_.head_dim, r < rows_,
                call_.q_vectors);
    }
  }

  // Whether the K/V tile at key `begin` needs no bias strip (array of biases by distance): all its
  // keys are within the sequence, no pair is hidden by causality or asymmetric ALiBi, and all pairs
  // have the same bias. Does not consider the mask (mask.h). False if the softmax scale is
  // negative, because OnlineSoftmax must then get scores that are already scaled.
  __device__ bool TileIsPlain(int begin) const {
    return call_.scale >= 0.0f && begin + S::kKeys <= sequence_.kv_len &&
           Bias().Constant(begin - (position_ + rows_ - 1), begin + S::kKeys - 1 - position_);
  }

  // Starts copying the K/V tile at key `begin` to pipeline stage `stage`. Unless
  // TileIsPlain(begin), also fills memory_.strip[stage] for all distances (key minus query
  // position) that occur in the tile: one bias per distance, or for FIRE one FireDistance
  // (bias.cuh).
  __device__ void LoadTile(int begin, int stage) {
    if constexpr (std::is_same_v<Kv, T>) {
      CopyKeys(begin, stage);
    } else {
      ConvertKeys(begin, stage);
    }
    if (TileIsPlain(begin)) return;
    const HeadBias bias = Bias();
    const int first = begin - position_ - (S::kRows - 1);
    for (int i = static_cast<int>(threadIdx.x); i < S::kStrip; i += S::kThreads) {
      memory_.strip[stage][i] = kFire ? bias.FireDistance(first + i) : bias.At(first + i);
    }
  }

  __device__ void CopyKeys(int begin, int stage) {
    const T* k = static_cast<const T*>(call_.k) + head_ * call_.k_head;
    const T* v = static_cast<const T*>(call_.v) + head_ * call_.v_head;
    const int piece = static_cast<int>(threadIdx.x) % kPieces;
#pragma unroll
    for (int j = static_cast<int>(threadIdx.x) / kPieces; j < S::kKeys; j += kRowStep) {
      const bool valid = begin + j < sequence_.kv_len;
      const int64_t row = valid ? key_rows_.Row(begin + j) : 0;
      const int to = Swizzled<kDim>(j, piece);
      CopyPiece(memory_.k[stage] + to, k + row * call_.k_row, piece, call_.head_dim, valid,
                call_.kv_vectors);
      CopyPiece(memory_.v[stage] + to, v + row * call_.v_row, piece, call_.head_dim, valid,
                call_.kv_vectors);
    }
  }

  // As CopyKeys, for e4m3. All loads of a thread are in flight together; the thread waits for them.
  __device__ void ConvertKeys(int begin, int stage) {
    constexpr int kEach = S::kKeys / kRowStep;
    const auto* k = static_cast<const uint8_t*>(call_.k) + head_ * call_.k_head;
    const auto* v = static_cast<const uint8_t*>(call_.v) + head_ * call_.v_head;
    const int piece = static_cast<int>(threadIdx.x) % kPieces;
    const int first = static_cast<int>(threadIdx.x) / kPieces;
    uint2 keys[kEach], values[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int key = begin + first + i * kRowStep;
      const bool valid = key < sequence_.kv_len;
      const int64_t row = valid ? key_rows_.Row(key) : 0;
      keys[i] =
          LoadE4m3Piece(k + row * call_.k_row, piece, call_.head_dim, valid, call_.kv_vectors);
      values[i] =
          LoadE4m3Piece(v + row * call_.v_row, piece, call_.head_dim, valid, call_.kv_vectors);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int to = Swizzled<kDim>(first + i * kRowStep, piece);
      *reinterpret_cast<uint4*>(memory_.k[stage] + to) = EightFromE4m3<T>(keys[i]);
      *reinterpret_cast<uint4*>(memory_.v[stage] + to) = EightFromE4m3<T>(values[i]);
    }
  }

  __device__ void LoadQueryFragment(int m, int step, uint32_t (&a)[4]) const {
    const int row = WarpRow() + m * 16 + Lane() % 16;
    Ldmatrix(a, SharedAddress(memory_.q + Swizzled<kDim>(row, 2 * step + Lane() / 16)));
  }
  __device__ void KeepQueries() {
    if constexpr (S::kKeepQueries) {
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
        for (int step = 0; step < kDim / 16; ++step) LoadQueryFragment(m, step, q_[m][step]);
      }
    }
  }

  // scores = Q K^T of the warp's queries.
  __device__ void Scores(int stage) {
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (int j = 0; j < kKeyGroups; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) scores_[m][j][e] = 0.0f;
      }
    }
    const T* keys = memory_.k[stage];
    const int key = Lane() % 8 + Lane() / 16 * 8, half = Lane() / 8 % 2;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      uint32_t a[S::kRowTiles][4];
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) {
        if constexpr (S::kKeepQueries) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[m][i] = q_[m][step][i];
        } else {
          LoadQueryFragment(m, step, a[m]);
        }
      }
#pragma unroll
      for (int j = 0; j < kKeyGroups; j += 2) {
        uint32_t b[4];
        Ldmatrix(b, SharedAddress(keys + Swizzled<kDim>(j * 8 + key, 2 * step + half)));
#pragma unroll
        for (int m = 0; m < S::kRowTiles; ++m) {
          Mma<T>(scores_[m][j], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
          Mma<T>(scores_[m][j + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2], b[3]);
        }
      }
    }
  }

  __device__ SequenceGlobals Globals() const {
    return SequenceGlobals(call_, sequence_.index, static_cast<int>(head_));
  }

  // Adds the tiles of the sequence's global keys.
  __device__ void AttendGlobals() {
    const int count = Globals().count();
    if (count == 0) return;
    __syncthreads();  // every warp has finished the last tile of the sequence's own keys
    LoadGlobalTile(0, 0);
    CpAsyncCommit();
    int stage = 0;
    for (int begin = 0; begin < count; begin += S::kKeys, stage ^= 1) {
      CpAsyncWait<0>();
      __syncthreads();  // this tile has arrived, and every warp has finished the previous one
      if (begin == 0) KeepQueries();
      if (begin + S::kKeys < count) LoadGlobalTile(begin + S::kKeys, stage ^ 1);
      CpAsyncCommit();
      Scores(stage);
      AddGlobalTile(begin, stage);
    }
  }

  // Starts copying the tile of global keys from number `begin` on to pipeline stage `stage`.
  __device__ void LoadGlobalTile(int begin, int stage) {
    const SequenceGlobals globals = Globals();
    const T* k = static_cast<const T*>(call_.global_k) + head_ * call_.global_k_head;
    const T* v = static_cast<const T*>(call_.global_v) + head_ * call_.global_v_head;
    const int piece = static_cast<int>(threadIdx.x) % kPieces;
    for (int j = static_cast<int>(threadIdx.x) / kPieces; j < S::kKeys; j += kRowStep) {
      const bool valid = begin + j < globals.count();
      const int64_t row = globals.first() + (valid ? begin + j : 0);
      const int to = Swizzled<kDim>(j, piece);
      CopyPiece(memory_.k[stage] + to, k + row * call_.global_k_row, piece, call_.head_dim, valid,
                call_.global_vectors);
      CopyPiece(memory_.v[stage] + to, v + row * call_.global_v_row, piece, call_.head_dim, valid,
                call_.global_vectors);
    }
  }

  // As AddTile, for the tile of global keys from number `begin` on.
  __device__ void AddGlobalTile(int begin, int stage) {
    const SequenceGlobals globals = Globals();
    const int end = begin + S::kKeys, last = position_ + rows_ - 1;
    float scale = 1.0f, row_bias = 0.0f;
    const bool plain = call_.scale >= 0.0f && end <= globals.count() &&
                       globals.Constant(begin, end, position_, last);
    if (plain) {
      scale = call_.scale * kLog2E;
      row_bias = globals.At(begin, globals.BlockOf(position_));
    }
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
      if (!plain) AddGlobalBias(scores_[m], globals, begin, WarpRow() + m * 16);
      float rescale[2];
      softmax_[m].ComputeProbs(scores_[m], scale, row_bias, rescale);
      Rescale(out_[m], rescale);
    }
    AddValues(stage);
  }

  // score = score * scale + bias, -inf for keys that do not exist. `row`: first of the warp's 16
  // queries, within the query tile.
  __device__ void AddGlobalBias(float (&scores)[kKeyGroups][4], const SequenceGlobals& globals,
                                int begin, int row) const {
    const float scale = call_.scale * kLog2E;
    const int position = position_ + row + Lane() / 4;
    const int block[2] = {globals.BlockOf(position), globals.BlockOf(position + 8)};
#pragma unroll
    for (int j = 0; j < kKeyGroups; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = begin + j * 8 + Lane() % 4 * 2 + e % 2;
        scores[j][e] = fmaf(scores[j][e], scale, globals.At(key, block[e / 2]));
      }
    }
    if (begin + S::kKeys > globals.count()) HideFrom(scores, globals.count() - begin);
  }

  // Adds bias and mask to the scores of the K/V tile at key `begin`, computes P from them, and adds
  // P V to out_.
  __device__ void AddTile(int begin, int stage) {
    float scale = 1.0f, row_bias = 0.0f;
    const bool plain = TileIsPlain(begin);
    if (plain) {
      scale = call_.scale * kLog2E;
      row_bias = Bias().At(begin - (position_ + rows_ - 1));
    }
    const bool masked = mask_.any() && View(begin) == TileVisibility::kSome;
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
      const int row = WarpRow() + m * 16;
      if (!plain) AddBias(scores_[m], begin, stage, row);
      if (masked) HideMasked(scores_[m], mask_, position_ + row, begin, sequence_.kv_len);
      float rescale[2];
      softmax_[m].ComputeProbs(scores_[m], scale, row_bias, rescale);
      Rescale(out_[m], rescale);
    }
    AddValues(stage);
  }

  __device__ void AddBias(float (&scores)[kKeyGroups][4], int begin, int stage, int row) {
    const float* strip = memory_.strip[stage] + S::kRows - 1 - row;
    const float scale = call_.scale * kLog2E;
    if constexpr (kFire) {
      const HeadBias bias = Bias();
      const int position = position_ + row + Lane() / 4, delta = begin - (position_ + row);
      const float length[2] = {bias.FireInverseLength(position),
                               bias.FireInverseLength(position + 8)};
      const auto pair = [&](int first, int i) {
        return float2{strip[first + i], strip[first + i + 1]};
      };
      AddDiagonals(scores, pair, scale, [&](float distance, int half, int from_strip) {
        return bias.Hidden(delta + from_strip) ? -INFINITY
                                               : bias.FireNetwork(distance * length[half]);
      });
    } else {
      AddStrip(scores, strip, scale);
    }
    const int keys = sequence_.kv_len - begin;
    if (keys < S::kKeys) HideFrom(scores, keys);
  }

  // out += P V
  __device__ void AddValues(int stage) {
    const T* values = memory_.v[stage];
#pragma unroll
    for (int step = 0; step < S::kKeys / 16; ++step) {
      uint32_t a[S::kRowTiles][4];
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) RoundProbs<T>(scores_[m], step, a[m]);
      const int key = step * 16 + Lane() % 16;
#pragma unroll
      for (int n = 0; n < kDimGroups; n += 2) {
        uint32_t b[4];
        LoadMatricesTransposed(b, SharedAddress(values + Swizzled<kDim>(key, n + Lane() / 16)));
#pragma unroll
        for (int m = 0; m < S::kRowTiles; ++m) {
          Mma<T>(out_[m][n], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
          Mma<T>(out_[m][n + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2], b[3]);
        }
      }
    }
  }

  // Epilogue: divides out_ by the row sums and writes the result to call_.out. The values pass
  // through the warp's own rows of memory_.q, so that neighbouring lanes store neighbouring 16-byte
  // pieces.
  __device__ void StoreOutput() {
    __syncwarp();
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float scale = softmax_[m].InverseSum(half);
        const int row = WarpRow() + m * 16 + half * 8 + Lane() / 4;
#pragma unroll
        for (int n = 0; n < kDimGroups; ++n) {
          const uint32_t pair =
              PackPair<T>(out_[m][n][2 * half] * scale, out_[m][n][2 * half + 1] * scale);
          *reinterpret_cast<uint32_t*>(memory_.q + Swizzled<kDim>(row, n) + Lane() % 4 * 2) = pair;
        }
      }
    }
    __syncwarp();
    T* out = static_cast<T*>(call_.out) + head_ * call_.out_head;
    const int piece = Lane() % kPieces;
    constexpr int kRowsAtOnce = 32 / kPieces > 0 ? 32 / kPieces : 1;
    for (int i = Lane() / kPieces; i < S::kRowTiles * 16; i += kRowsAtOnce) {
      const int row = WarpRow() + i;
      if (row >= rows_ || piece * 8 >= call_.head_dim) continue;
      const T* from = memory_.q + Swizzled<kDim>(row, piece);
      T* to = out + (row_ + row) * call_.out_row + piece * 8;
      if (call_.q_vectors) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
      } else {
        for (int c = 0; c < 8 && piece * 8 + c < call_.head_dim; ++c) to[c] = from[c];
      }
    }
  }

  const Call& call_;
  TileMemory<T, kDim>& memory_;
  const Sequence sequence_;
  const KeyRows key_rows_;
  const SequenceMask mask_;
  const int64_t head_, row_;  // row_: first query row of the tile in call.q
  const int rows_, position_;

  uint32_t q_[S::kRowTiles][S::kKeepQueries ? kDim / 16 : 1][4];
  float scores_[S::kRowTiles][kKeyGroups][4];
  float out_[S::kRowTiles][kDimGroups][4] = {};
  OnlineSoftmax softmax_[S::kRowTiles];
};

// out = softmax(scale q k^T + bias + mask) v for one head and up to kRows queries of a sequence.
// Shapes: q, out [rows, heads, head_dim]; k, v rows of head_dim values; T is bf16 or f16, Kv is T
// or uint8_t (e4m3).
// Math: MMAs of T with f32 accumulators; f32 online softmax with powers of two, over tiles of kKeys
// keys; P rounded to T, as FlashAttention-2 does (Dao 2023). A row that sees no key gives zeros. A
// tile in which the bias is constant (all distances are past the end of the bias table) costs one
// more addition per row than a tile without bias; in other tiles the bias is looked up once per
// diagonal. Global keys follow in tiles of their own; theirs is looked up once per score.
// Mapping: grid (query tiles, heads); a warp owns kRowTiles * 16 queries, whose scores, P and sums
// stay in registers. K and V are copied by cp.async into two stages, with one barrier per tile.
// Bound: 4 rows kv_len head_dim FLOP at the peak of mma.sync, which on sm_90 is below that of
// wgmma.
// Test: tests/kernels/attention/attention_test.cc, tests/kernels/attention/global_keys_test.cc.
// History: attention/NOTES.md.
template <typename T, int kDim, bool kFire, typename Call, typename Kv>
__global__ void __launch_bounds__(TileSizes<kDim>::kThreads)
    AttendTiledKernel(const __grid_constant__ Call call) {
  extern __shared__ __align__(128) unsigned char shared[];
  WaitOnDependentGrids();
  const QueryTile query_tile(call, static_cast<int>(blockIdx.x), TileSizes<kDim>::kRows);
  if (query_tile.sequence < 0) return;
  TiledBlock<T, kDim, kFire, Call, Kv>(call, *reinterpret_cast<TileMemory<T, kDim>*>(shared),
                                       query_tile, static_cast<int>(blockIdx.y))
      .Run();
}

template <typename T, int kDim, bool kFire, typename Kv = T, typename Call>
void LaunchTiled(const Call& call, int64_t rows_total, CudaStream& stream) {
  using S = TileSizes<kDim>;
  constexpr int kSharedBytes = sizeof(TileMemory<T, kDim>);
  const int64_t blocks = MaxQueryTiles(rows_total, call.sequences, S::kRows);
  Launch(stream, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(call.heads)),
         dim3(S::kThreads), kSharedBytes, AttendTiledKernel<T, kDim, kFire, Call, Kv>, call);
}

template <typename T, int kDim, typename Kv>
void LaunchOfType(const AttentionCall& call, int64_t rows_total, CudaStream& stream) {
  call.bias.kind == BiasKind::kFire ? LaunchTiled<T, kDim, true, Kv>(call, rows_total, stream)
                                    : LaunchTiled<T, kDim, false, Kv>(call, rows_total, stream);
}

template <typename T, int kDim>
void LaunchOfDim(const AttentionCall& call, int64_t rows_total, CudaStream& stream) {
  call.kv_e4m3 ? LaunchOfType<T, kDim, uint8_t>(call, rows_total, stream)
               : LaunchOfType<T, kDim, T>(call, rows_total, stream);
}

}  // namespace

template <typename T>
void AttendTiled(const AttentionCall& call, int64_t rows_total, CudaStream& stream) {
  if (call.head_dim <= 64) return LaunchOfDim<T, 64>(call, rows_total, stream);
  if (call.head_dim <= 128) return LaunchOfDim<T, 128>(call, rows_total, stream);
  LaunchOfDim<T, 256>(call, rows_total, stream);
}
template void AttendTiled<__nv_bfloat16>(const AttentionCall&, int64_t, CudaStream&);
template void AttendTiled<__half>(const AttentionCall&, int64_t, CudaStream&);

template <typename T>
void AttendTiledLocal(const LocalAttentionCall& call, int64_t rows_total, CudaStream& stream) {
  if (call.head_dim <= 64) return LaunchTiled<T, 64, false>(call, rows_total, stream);
  if (call.head_dim <= 128) return LaunchTiled<T, 128, false>(call, rows_total, stream);
  LaunchTiled<T, 256, false>(call, rows_total, stream);
}
template void AttendTiledLocal<__nv_bfloat16>(const LocalAttentionCall&, int64_t, CudaStream&);
template void AttendTiledLocal<__half>(const LocalAttentionCall&, int64_t, CudaStream&);

}  // namespace quintet::cuda
