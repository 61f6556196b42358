// Inner loops of a panel kernel, which multiplies rows of x by one panel (32 output channels of W).
// This file is compiled once per instruction set: included inside the namespace and under the
// compiler attributes of the including file, which supplies a class Op. A group is 1 f32, 2 bf16 or
// 4 int8 consecutive values of k; a unit is the four bytes of one row or channel for one group.
// Members of Op:
//   V, W, X            vector types: accumulators, weights, and one unit of x repeated in all lanes
//   kVectors           vectors per group of the panel: 32 / lanes
//   kMaxRows           rows whose accumulators fit into the registers
//   Columns(rows)      for a block of `rows` rows: number of accumulator vectors of each row that
//                      one pass over the groups computes in registers; a divisor of kVectors
//   Zero Load Store LoadWeights KeepInRegister Broadcast MulAdd
//                      operations on these vectors
//
// Accumulation: each accumulator is one chain over the groups in ascending order, whatever the
// number of rows in its block. Bound: rows x 32 multiply-adds per group against 128 bytes of
// weights. On Zen 4 the kernel reaches the peak multiply-add rate from 2 rows on if the weights are
// in the L2 cache; with f32 weights in main memory it is limited by memory bandwidth up to about 8
// rows. The large shared caches of Xeons (2023 and later) have a high latency, so the next panel is
// prefetched while the rows of x are multiplied by the current one.

template <class Op, int kRows, int kColumns>
HWY_INLINE void Strip(const char* x, const char* w, const char* ahead, int64_t ahead_step,
                      int64_t groups, char* tile, bool first) {
  constexpr int64_t kPanelBytes = cpu::kPanelColumns * cpu::kUnitBytes;
  constexpr int64_t kVectorBytes = kPanelBytes / Op::kVectors;
  typename Op::V sum[kRows][kColumns];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
      sum[r][c] = first ? Op::Zero() : Op::Load(tile + r * kPanelBytes + c * kVectorBytes);
    }
  }
  const bool both = ahead_step > 64;  // a step covers two cache lines
  for (int64_t g = 0; g < groups; ++g) {
    typename Op::W weights[kColumns];
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
      weights[c] = Op::LoadWeights(w + c * kVectorBytes);
      if (kRows > 1) Op::KeepInRegister(weights[c]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename Op::X unit = Op::Broadcast(x + r * cpu::kUnitBytes);
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) sum[r][c] = Op::MulAdd(unit, weights[c], sum[r][c]);
    }
    __builtin_prefetch(ahead, 0, 2);
    if (both) __builtin_prefetch(ahead + 64, 0, 2);
    w += kPanelBytes;
    x += kRows * cpu::kUnitBytes;
    ahead += ahead_step;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
      Op::Store(sum[r][c], tile + r * kPanelBytes + c * kVectorBytes);
    }
  }
}

template <class Op, int kRows>
HWY_INLINE void RowBlock(const char* x, const char* w, const char* ahead, int64_t ahead_step,
                         int64_t groups, char* tile, bool first) {
  constexpr int kColumns = Op::Columns(kRows);
  constexpr int64_t kStripBytes = kColumns * (cpu::kPanelColumns * cpu::kUnitBytes / Op::kVectors);
  for (int64_t s = 0; s < Op::kVectors / kColumns; ++s) {
    Strip<Op, kRows, kColumns>(x, w + s * kStripBytes, ahead, ahead_step, groups,
                               tile + s * kStripBytes, first);
  }
}

template <class Op, int kRows>
HWY_INLINE void DispatchRows(int64_t rows, const char* x, const char* w, const char* ahead,
                             int64_t ahead_step, int64_t groups, char* tile, bool first) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      RowBlock<Op, kRows>(x, w, ahead, ahead_step, groups, tile, first);
    } else {
      DispatchRows<Op, kRows - 1>(rows, x, w, ahead, ahead_step, groups, tile, first);
    }
  }
}

// Multiplies one panel by all rows of x. The groups of k are divided into passes (GroupsOfPass):
// the weights of one pass stay in the L2 cache while all blocks of rows are multiplied by them.
// Between passes, the partial sums of all rows are in p.tile.
template <class Op>
HWY_INLINE void RunPanelGemm(const cpu::PanelGemm& p) {
  constexpr int64_t kPanelBytes = cpu::kPanelColumns * cpu::kUnitBytes;
  const cpu::Activations& x = *p.x;
  const int64_t most = cpu::GroupsOfPass(x.blocks, p.groups);
  for (int64_t g = 0; g < p.groups; g += most) {
    const int64_t groups = most < p.groups - g ? most : p.groups - g;
    const char* panel = p.panel + g * kPanelBytes;
    // Choose the weights to prefetch while a block of rows is multiplied. If there is a next panel
    // and x has several blocks, each block prefetches an equal part of the next panel. Otherwise
    // the block prefetches the weights of the current panel that are kAhead bytes further on.
    const int64_t share = groups * kPanelBytes / x.blocks;
    const bool asks = p.next != nullptr && x.blocks > 1;
    const int64_t step = asks ? (share + groups - 1) / groups : kPanelBytes;
    for (int64_t block = 0; block < x.blocks; ++block) {
      const int64_t row = x.BlockBegin(block), rows = x.BlockRows(block);
      const char* ahead = asks ? p.next + g * kPanelBytes + block * share : panel + cpu::kAhead;
      char* tile = p.tile + row * kPanelBytes;
      DispatchRows<Op, Op::kMaxRows>(rows, x.Block(block) + g * rows * cpu::kUnitBytes, panel,
                                     ahead, step, groups, tile, g == 0);
      if (g + groups == p.groups) p.finish(tile, row, rows);
    }
  }
}
