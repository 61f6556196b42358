// Tile scheduler of the Hopper attention kernel: the sequence of work tiles that one CTA processes.
#pragma once

#include "kernels/attention/hopper.cuh"

namespace quintet::cuda {

struct AttentionWorkTile {
  QueryTile tile;
  int head;
};

// Returns the number of query tiles of sequence s and their cost (SequenceTiles). There are none if
// s is past the last sequence or if AttendFewRows handles the sequence.
template <typename S>
__device__ SequenceTiles TilesOf(const AttentionCall& call, int s) {
  if (s >= call.sequences) return {0, 0};
  const Sequence sequence(call, s);
  if (sequence.q_len <= call.few_rows) return {0, 0};
  const int level = call.causal ? max(0, sequence.position) / S::kRows : sequence.kv_len / S::kKeys;
  return {level, (sequence.q_len + S::kRows - 1) / S::kRows};
}

// Static tile scheduler. Work tiles (query tile x head) are assigned to the CTAs of the grid in
// zig-zag order. They are first sorted by cost, most expensive first, unless the call has more than
// kSortedSequences sequences. All lanes of a warp must call At together.
template <typename S>
class AttentionTileScheduler {
 public:
  // sequences: an array of kSortedSequences elements in shared memory, which the caller has filled:
  // element s is TilesOf(call, s).
  __device__ AttentionTileScheduler(const AttentionCall& call, const SequenceTiles* sequences)
      : call_(call), sequences_(sequences) {}

  __device__ AttentionWorkTile At(int turn) const {
    const int width = static_cast<int>(gridDim.x), at = static_cast<int>(blockIdx.x);
    const int index = turn * width + (turn % 2 == 0 ? at : width - 1 - at);
    const int block = index / call_.heads, head = index % call_.heads;
    if (call_.sequences > kSortedSequences) return {QueryTile(call_, block, S::kRows), head};
    return {Find(block), head};
  }

 private:
  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % 32; }

  // Returns the index-th query tile in order of decreasing cost; its sequence is -1 if there are
  // not that many tiles.
  __device__ QueryTile Find(int index) const {
    if (index >= CountFrom(0)) return {};
    int low = 0, high = Top();
    while (high - low > 1) {  // CountFrom(low) > index >= CountFrom(high)
      const int level = (low + high) / 2;
      (CountFrom(level) > index ? low : high) = level;
    }
    index -= CountFrom(low + 1);
    for (int base = 0;; base += 32) {
      const SequenceTiles of = sequences_[base + Lane()];
      const int blocks = From(of, low) - From(of, low + 1);
      int end = blocks;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_up_sync(0xffffffffu, end, step);
        if (Lane() >= step) end += before;
      }
      const uint32_t past = __ballot_sync(0xffffffffu, index < end);
      if (past != 0) {
        const int owner = __ffs(static_cast<int>(past)) - 1;
        const int within = call_.causal ? low - of.level : index - (end - blocks);
        return {base + owner, __shfl_sync(0xffffffffu, within, owner) * S::kRows};
      }
      index -= __shfl_sync(0xffffffffu, end, 31);
    }
  }

  // Number of one sequence's query tiles that cost at least `level` (a cost of 1 is about the work
  // of one K/V tile).
  __device__ int From(const SequenceTiles& of, int level) const {
    if (!call_.causal) return of.level >= level ? of.tiles : 0;
    return min(max(of.level + of.tiles - level, 0), of.tiles);
  }
  __device__ int CountFrom(int level) const {
    int count = 0;
#pragma unroll
    for (int s = 0; s < kSortedSequences; s += 32) count += From(sequences_[s + Lane()], level);
    return __reduce_add_sync(0xffffffffu, count);
  }
  // Returns a number that is higher than the cost of every query tile.
  __device__ int Top() const {
    int top = 0;
#pragma unroll
    for (int s = 0; s < kSortedSequences; s += 32) {
      const SequenceTiles of = sequences_[s + Lane()];
      top = max(top, of.level + (call_.causal ? of.tiles : 1));
    }
    return __reduce_max_sync(0xffffffffu, top);
  }

  const AttentionCall& call_;
  const SequenceTiles* sequences_;
};

}  // namespace quintet::cuda
