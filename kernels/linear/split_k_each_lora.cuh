// LoRA terms in the split-K GEMM kernel (linear/split_k.cuh) if each row has an adapter of its own:
// y += (x a^T) b^T. A dedicated warpgroup of each CTA computes these terms while the other warps
// run the GEMM:
// 1. The warps of all CTAs compute t = x a^T, each warp for one row of x, 16 rows of `a` and a
//    slice of k, and store t in global memory.
// 2. Each CTA reads t of the rows that it finishes. Every word of t has a tag that is new in each
//    call, so that a CTA waits for the words that it needs and for no others.
// 3. It multiplies t by the columns of b of its tile, and stores the result in shared memory for
//    the epilogue.
// A CTA waits for t from other CTAs, so all CTAs of the grid must be resident at once
// (SplitKLoraFits).
#pragma once

#include "kernels/linear/split_k_epilogue.cuh"
#include "kernels/ptx/tma.cuh"

namespace quintet::cuda {

constexpr int kLoraBlock = 16;      // rows of `a` that a warp multiplies by a row of x at once
constexpr int kLoraLaneValues = 8;  // consecutive values of k of a lane
static_assert(kLoraSlice == 32 * kLoraLaneValues && kLoraRankMultiple == kLoraBlock);

// Two values of t and the tag of the call that wrote them. A single 16-byte access reads or writes
// the whole word.
struct __align__(16) LoraWord {
  float t[2];
  uint64_t tag;
};

__device__ __forceinline__ void StoreLoraWord(LoraWord* to, float first, float second,
                                              uint64_t tag) {
  const uint64_t values =
      uint64_t{__float_as_uint(second)} << 32 | uint64_t{__float_as_uint(first)};
  asm volatile(
      "{\n"
      ".reg .b128 word;\n"
      "mov.b128 word, {%1, %2};\n"
      "st.relaxed.gpu.global.b128 [%0], word;\n"
      "}\n"
      :
      : "l"(to), "l"(values), "l"(tag)
      : "memory");
}
__device__ __forceinline__ LoraWord LoadLoraWord(const LoraWord* from) {
  uint64_t values, tag;
  asm volatile(
      "{\n"
      ".reg .b128 word;\n"
      "ld.relaxed.gpu.global.b128 word, [%2];\n"
      "mov.b128 {%0, %1}, word;\n"
      "}\n"
      : "=l"(values), "=l"(tag)
      : "l"(from)
      : "memory");
  return {{__uint_as_float(static_cast<unsigned>(values)),
           __uint_as_float(static_cast<unsigned>(values >> 32))},
          tag};
}

// The tag of a call is LoraWeight::counter / 2^16. The counter grows by 2^16 in each call: every
// CTA adds its part after it has read the counter, so all CTAs read the same tag.
__device__ __forceinline__ uint64_t TakeTag(const SplitKLora& lora) {
  uint64_t count;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(count) : "l"(lora.counter) : "memory");
  const uint64_t tag = count >> 16;
  const unsigned ctas = gridDim.x * gridDim.y;
  const bool first = blockIdx.x == 0 && blockIdx.y == 0;
  // `tag` is never 0, because the counter starts at 2^16 or more. The comparison with 0 only makes
  // the addition wait for the load.
  const uint64_t part = (first ? (1u << 16) - (ctas - 1) : 1u) * (tag != 0 ? 1u : 0u);
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;"
               :
               : "l"(lora.counter), "l"(part)
               : "memory");
  return tag;
}

// The LoRA warpgroup of a CTA. thread: index in it.
template <typename T, typename S>
class SplitKEachLora {
 public:
  __device__ __forceinline__ SplitKEachLora(const SplitKArgs& a, const SplitKWork<S>& share,
                                            const SplitKSmem& layout, unsigned char* memory,
                                            int finishes, int thread)
      : a_(a),
        thread_(thread),
        lane_(thread % 32),
        finishes_(finishes),
        halves_(a.up_offset > 0 ? 2 : 1),
        first_(share.row + share.rank * layout.each),
        column_(share.column),
        tail_(*reinterpret_cast<SplitKSmem::Tail*>(memory + layout.tail)),
        rows_(reinterpret_cast<SplitKLoraRow*>(memory + layout.lora)),
        t_(reinterpret_cast<float*>(rows_ + layout.each)),
        terms_(reinterpret_cast<float*>(memory + layout.terms)) {}

  // Computes the LoRA terms, stores them in shared memory, and arrives at tail.lora_ready.
  __device__ __forceinline__ void Run() {
    if (thread_ == kWarpgroup - 1) tail_.lora_tag = TakeTag(a_.lora);
    Shrink();
    uint4 columns[kRows][2];
    LoadColumns(0, 0, columns);
    AddSlices(tail_.lora_tag);
    NamedBarrierSync(kBarrier, kWarpgroup);
    Multiply(columns);
    __syncwarp();
    if (lane_ == 0) BarrierArrive(SharedAddress(&tail_.lora_ready));
  }

 private:
  static constexpr int kBarrier = 2;  // named barrier; 1 is the consumers'
  static constexpr int kWarps = kWarpgroup / 32;
  static constexpr int kRows = 4;  // rows of a thread of Multiply for which b is loaded at once
  static constexpr int kRowStep = kWarpgroup / S::kChannels;

  // A work item of Shrink: one row of x, one part of the outputs, the kLoraBlock ranks from `rank`
  // on, and one slice of k.
  struct Item {
    int row, part, rank, slice;

    __device__ __forceinline__ Item(const SplitKLora& lora, int index) {
      row = lora.of_row.Quotient(index);
      const int within = index - row * lora.of_row.by;
      part = lora.of_part.Quotient(within);
      const int of_part = within - part * lora.of_part.by;
      const int block = lora.of_block.Quotient(of_part);
      slice = of_part - block * lora.of_block.by;
      rank = block * kLoraBlock;
    }
  };

  __device__ __forceinline__ int PartOf(int half) const {
    return a_.lora.of_column.Quotient(half * a_.up_offset + column_);
  }

  // Finds the rows' factors, and computes and stores t = x a^T for this warp's items: the warps of
  // all CTAs take the items in turn. All data that earlier kernels do not write is loaded before
  // the wait for these kernels.
  __device__ __forceinline__ void Shrink() {
    const SplitKLora& lora = a_.lora;
    const int ctas = static_cast<int>(gridDim.x * gridDim.y);
    const int cta = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x);
    const int items = a_.rows * lora.of_row.by;
    int index = thread_ / 32 * ctas + cta;
    const bool finds = thread_ < finishes_;
    const int row_adapter = finds ? __ldcg(lora.adapters + first_ + thread_) : -1;
    uint4 factors[kLoraBlock];
    bool used = LoadFactors(index, items, factors);
    for (int next = index + ctas * kWarps; next < items; next += ctas * kWarps) Prefetch(next);
    if (finds) FindRow(row_adapter);
    NamedBarrierSync(kBarrier, kWarpgroup);
    if constexpr (!S::kTwoCopy) PrefetchColumns();  // with large weights it takes longer
    WaitForKernelsBefore();
    const uint64_t tag = tail_.lora_tag;
    while (index < items) {
      if (used) MultiplyItem(Item(lora, index), factors, tag);
      index += ctas * kWarps;
      used = LoadFactors(index, items, factors);
    }
  }

  // Writes rows_[thread_]: for each half of the tile, the rank of this row's adapter, and the
  // address in the adapter's b of the half's first column.
  __device__ __forceinline__ void FindRow(int adapter) const {
    const SplitKLora& lora = a_.lora;
    SplitKLoraRow row = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (adapter < 0 || half >= halves_) continue;
      const int part = PartOf(half);
      const LoraPart& entry = lora.table[adapter * static_cast<int>(lora.stride) + part];
      row.rank[half] = static_cast<int>(entry.rank);
      const int column = half * a_.up_offset + column_ - part * lora.of_column.by;
      row.b[half] = static_cast<const T*>(entry.b) + column * row.rank[half];
    }
    rows_[thread_] = row;
  }

  // Loads this lane's values of `a` for item number `index`: kLoraLaneValues values of k in each of
  // kLoraBlock rows. Returns false if the item does not exist or its row has no such factors.
  __device__ __forceinline__ bool LoadFactors(int index, int items,
                                              uint4 (&factors)[kLoraBlock]) const {
    if (index >= items) return false;
    const SplitKLora& lora = a_.lora;
    const Item item(lora, index);
    const int adapter = __ldcg(lora.adapters + item.row);
    if (adapter < 0) return false;
    const LoraPart& entry = lora.table[adapter * static_cast<int>(lora.stride) + item.part];
    if (static_cast<int>(entry.rank) <= item.rank) return false;
    const int k = item.slice * static_cast<int>(kLoraSlice) + lane_ * kLoraLaneValues;
    const auto* from = static_cast<const T*>(entry.a) + item.rank * a_.k + k;
#pragma unroll
    for (int i = 0; i < kLoraBlock; ++i, from += a_.k) {
      factors[i] = k < a_.k ? __ldg(reinterpret_cast<const uint4*>(from)) : uint4{};
    }
    return true;
  }

  // Prefetches the factors of an item to L2. Two lanes share a row of 512 bytes; each of them
  // prefetches two lines of 128 bytes.
  __device__ __forceinline__ void Prefetch(int index) const {
    const SplitKLora& lora = a_.lora;
    const Item item(lora, index);
    const int adapter = __ldcg(lora.adapters + item.row);
    if (adapter < 0) return;
    const LoraPart& entry = lora.table[adapter * static_cast<int>(lora.stride) + item.part];
    if (static_cast<int>(entry.rank) <= item.rank) return;
    constexpr int kLine = 64;  // values
    const int k = item.slice * static_cast<int>(kLoraSlice) + lane_ / 16 * 2 * kLine;
    const auto* const from = static_cast<const T*>(entry.a) + (item.rank + lane_ % 16) * a_.k + k;
    if (k < a_.k) PrefetchL2(from);
    if (k + kLine < a_.k) PrefetchL2(from + kLine);
  }

  // Prefetches to L2 the columns of b that this CTA multiplies. 16 lanes share a row.
  __device__ __forceinline__ void PrefetchColumns() const {
    constexpr int kLine = 128, kLanes = 16;  // bytes
    for (int i = thread_ / kLanes; i < finishes_ * halves_; i += kWarpgroup / kLanes) {
      const SplitKLoraRow& row = rows_[i / halves_];
      const int half = i % halves_;
      const int bytes = S::kChannels / halves_ * row.rank[half] * static_cast<int>(sizeof(T));
      for (int at = thread_ % kLanes * kLine; at < bytes; at += kLanes * kLine) {
        PrefetchL2(static_cast<const unsigned char*>(row.b[half]) + at);
      }
    }
  }

  __device__ __forceinline__ void MultiplyItem(const Item& item, const uint4 (&factors)[kLoraBlock],
                                               uint64_t tag) const {
    const SplitKLora& lora = a_.lora;
    const int k = item.slice * static_cast<int>(kLoraSlice) + lane_ * kLoraLaneValues;
    const auto* const from = static_cast<const T*>(lora.x) + item.row * lora.x_stride + k;
    const uint4 bits = k < a_.k ? __ldcg(reinterpret_cast<const uint4*>(from)) : uint4{};
    LoraWord* const to =
        lora.t +
        (((item.slice * a_.rows + item.row) * lora.parts + item.part) * lora.max_rank + item.rank) /
            2;
    constexpr int kSums = kLoraBlock / 2;  // at once, to have enough registers
#pragma unroll
    for (int first = 0; first < kLoraBlock; first += kSums) {
      float x[kLoraLaneValues], sums[kSums];
      LoadConsecutive(reinterpret_cast<const T*>(&bits), x);
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        float v[kLoraLaneValues];
        LoadConsecutive(reinterpret_cast<const T*>(&factors[first + i]), v);
        sums[i] = x[0] * v[0];
#pragma unroll
        for (int j = 1; j < kLoraLaneValues; ++j) sums[i] = fmaf(x[j], v[j], sums[i]);
      }
      // Adds the sums of all lanes. In each step, a lane sends half of its sums to another lane and
      // adds the sums that it receives to the half that it keeps, until two sums are left.
      int element = 0;  // the first of these two
#pragma unroll
      for (int half = kSums / 2; half > 1; half /= 2) {
        const int other = 4 * half;
        const bool upper = (lane_ & other) != 0;
        element += upper ? half : 0;
#pragma unroll
        for (int i = 0; i < half; ++i) {
          const float given = upper ? sums[i] : sums[i + half];
          const float kept = upper ? sums[i + half] : sums[i];
          sums[i] = kept + __shfl_xor_sync(0xffffffffu, given, other);
        }
      }
#pragma unroll
      for (int other = 4; other > 0; other /= 2) {
        sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], other);
        sums[1] += __shfl_xor_sync(0xffffffffu, sums[1], other);
      }
      if (lane_ % 8 == 0) StoreLoraWord(to + (first + element) / 2, sums[0], sums[1], tag);
    }
  }

  // Waits for t and adds its slices in a fixed order. A lane adds two of 16 ranks over every fourth
  // slice; a warp handles every kWarps-th row.
  __device__ __forceinline__ void AddSlices(uint64_t tag) const {
    constexpr int kAtOnce = 4;  // rows
    const SplitKLora& lora = a_.lora;
    const int warp = thread_ / 32, pair = thread_ % 8, group = thread_ % 32 / 8;
    const int row_words = lora.parts * lora.max_rank / 2, slice_words = a_.rows * row_words;
    for (int half = 0; half < halves_; ++half) {
      for (int block = 0; block < lora.max_rank; block += kLoraBlock) {
        const LoraWord* const words =
            lora.t + first_ * row_words + (PartOf(half) * lora.max_rank + block) / 2 + pair;
        for (int first = warp; first < finishes_; first += kAtOnce * kWarps) {
          float sums[kAtOnce][2] = {};
          bool used[kAtOnce];
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            const int r = first + i * kWarps;
            used[i] = r < finishes_ && rows_[r].rank[half] > block;
          }
          for (int slice = group; slice < lora.slices; slice += 4) {
            LoraWord word[kAtOnce];
            bool waits;
            do {
              waits = false;
#pragma unroll
              for (int i = 0; i < kAtOnce; ++i) {
                if (!used[i]) continue;
                word[i] =
                    LoadLoraWord(words + (first + i * kWarps) * row_words + slice * slice_words);
                waits = waits || word[i].tag != tag;
              }
            } while (waits);
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
              if (!used[i]) continue;
              sums[i][0] += word[i].t[0];
              sums[i][1] += word[i].t[1];
            }
          }
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              sums[i][e] += __shfl_xor_sync(0xffffffffu, sums[i][e], 8);
              sums[i][e] += __shfl_xor_sync(0xffffffffu, sums[i][e], 16);
            }
            const int r = first + i * kWarps;
            float* const to = t_ + (r * halves_ + half) * lora.max_rank + block + 2 * pair;
            if (used[i] && group == 0) *reinterpret_cast<float2*>(to) = {sums[i][0], sums[i][1]};
          }
        }
      }
    }
  }

  // Loads the values of b for ranks [block, block + 16) and this thread's column of the tile, for
  // kRows rows: row first + thread_ / kChannels, and then every kRowStep-th row.
  __device__ __forceinline__ void LoadColumns(int first, int block,
                                              uint4 (&columns)[kRows][2]) const {
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int r = first + thread_ / S::kChannels + j * kRowStep;
      columns[j][0] = columns[j][1] = uint4{};
      if (r >= finishes_) continue;
      const int rank = rows_[r].rank[Half()];
      if (rank <= block) continue;
      const auto* const b = static_cast<const T*>(rows_[r].b[Half()]) + Column() * rank + block;
      columns[j][0] = __ldg(reinterpret_cast<const uint4*>(b));
      columns[j][1] = __ldg(reinterpret_cast<const uint4*>(b) + 1);
    }
  }

  // terms = t b^T for this thread's column of the tile. `columns` must hold the values that
  // LoadColumns(0, 0, columns) has loaded.
  __device__ __forceinline__ void Multiply(uint4 (&columns)[kRows][2]) const {
    constexpr int kEach = kRows * kRowStep;  // rows of the CTA at once
    const int max_rank = a_.lora.max_rank;
    float sums[kRows] = {};
#pragma unroll 1
    for (int first = 0, block = 0; first < finishes_;) {
      const bool last = block + kLoraBlock >= max_rank;  // of the blocks of these rows
      const int next_first = last ? first + kEach : first,
                next_block = last ? 0 : block + kLoraBlock;
      uint4 next[kRows][2];
      LoadColumns(next_first, next_block, next);
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const int r = first + thread_ / S::kChannels + j * kRowStep;
        if (r < finishes_ && rows_[r].rank[Half()] > block) {
          const float* const t = t_ + (r * halves_ + Half()) * max_rank + block;
          float values[kLoraBlock];
          LoadConsecutive(reinterpret_cast<const T*>(columns[j]), values);
#pragma unroll
          for (int i = 0; i < kLoraBlock; i += 4) {
            const float4 v = *reinterpret_cast<const float4*>(t + i);
            sums[j] = fmaf(v.x, values[i], sums[j]);
            sums[j] = fmaf(v.y, values[i + 1], sums[j]);
            sums[j] = fmaf(v.z, values[i + 2], sums[j]);
            sums[j] = fmaf(v.w, values[i + 3], sums[j]);
          }
        }
        if (last) {
          if (r < finishes_) terms_[r * S::kChannels + thread_ % S::kChannels] = sums[j];
          sums[j] = 0.0f;
        }
      }
      // This copy has a loop of its own: in the loop above, it would wait for the loads of `next`.
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        columns[j][0] = next[j][0];
        columns[j][1] = next[j][1];
      }
      first = next_first;
      block = next_block;
    }
  }

  // Half: 1 if this thread's column of the tile is an up column, else 0. Column: index of this
  // column within its half of the tile.
  __device__ __forceinline__ int Half() const {
    return halves_ == 2 && thread_ % S::kChannels >= S::kChannels / 2 ? 1 : 0;
  }
  __device__ __forceinline__ int Column() const {
    return thread_ % S::kChannels - Half() * (S::kChannels / 2);
  }

  const SplitKArgs& a_;
  const int thread_, lane_;
  const int finishes_, halves_;
  const int first_, column_;  // first row that the CTA finishes, first column of its tile
  SplitKSmem::Tail& tail_;
  SplitKLoraRow* const rows_;  // [finishes]
  float* const t_;             // [finishes, halves, max_rank]
  float* const terms_;         // [finishes, kChannels]
};

}  // namespace quintet::cuda
