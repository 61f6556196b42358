// The inner loops of a panel product, compiled once for each instruction set: included inside the
// namespace and under the compiler attributes of its includer, which supplies Op:
//   V, W, X            accumulators, weights and one activation unit, as vectors
//   kVectors           vectors of a panel: 32 / lanes
//   kMaxRows           rows whose accumulators fit in the registers
//   Columns(rows)      vectors that one pass takes with so many rows, a divisor of kVectors
//   Zero Load Store LoadWeights KeepInRegister Broadcast MulAdd
//
// Math: each accumulator is one chain over the groups in ascending order, whatever the number of
// rows around it. Bound: rows x 32 multiply-adds per group against 128 bytes of weights. On Zen 4
// from 2 rows on at the multipliers' limit when the weights are in the second-level cache; from
// main memory at its speed up to about 8 rows of f32. Large caches far from the core are slow to
// answer (Xeons of 2023 and later): the next panel is asked for while this one's rows are worked
// on.

template <class Op, int kRows, int kColumns>
HWY_INLINE void Strip(const char* x, int64_t x_row_bytes, const char* w, const char* ahead,
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
  // Three rows share a pointer, as an address can hold one register times 1 or 2: more pointers
  // than registers are slow.
  constexpr int kPointers = (kRows + 2) / 3;
  const char* xs[kPointers];
#pragma GCC unroll 16
  for (int i = 0; i < kPointers; ++i) xs[i] = x + 3 * i * x_row_bytes;
  for (int64_t g = 0; g < groups; ++g) {
    typename Op::W weights[kColumns];
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
      weights[c] = Op::LoadWeights(w + c * kVectorBytes);
      if (kRows > 1) Op::KeepInRegister(weights[c]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename Op::X unit = Op::Broadcast(xs[r / 3] + r % 3 * x_row_bytes);
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) sum[r][c] = Op::MulAdd(unit, weights[c], sum[r][c]);
    }
    w += kPanelBytes;
    __builtin_prefetch(ahead, 0, 2);
    ahead += kPanelBytes;
#pragma GCC unroll 16
    for (int i = 0; i < kPointers; ++i) {
      xs[i] += cpu::kUnitBytes;
      // Hidden from the compiler, or it would make one pointer a row of them again.
      asm volatile("" : "+r"(xs[i]));
    }
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
HWY_INLINE void RowBlock(const char* x, int64_t x_row_bytes, const char* w, const char* ahead,
                         int64_t groups, char* tile, bool first) {
  constexpr int kColumns = Op::Columns(kRows);
  constexpr int64_t kStripBytes = kColumns * (cpu::kPanelColumns * cpu::kUnitBytes / Op::kVectors);
  for (int64_t s = 0; s < Op::kVectors / kColumns; ++s) {
    Strip<Op, kRows, kColumns>(x, x_row_bytes, w + s * kStripBytes, ahead, groups,
                               tile + s * kStripBytes, first);
  }
}

template <class Op, int kRows>
HWY_INLINE void DispatchRows(int64_t rows, const char* x, int64_t x_row_bytes, const char* w,
                             const char* ahead, int64_t groups, char* tile, bool first) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      RowBlock<Op, kRows>(x, x_row_bytes, w, ahead, groups, tile, first);
    } else {
      DispatchRows<Op, kRows - 1>(rows, x, x_row_bytes, w, ahead, groups, tile, first);
    }
  }
}

// Blocks of k keep the weights in the second-level cache while the rows pass over them; sums wait
// in the tile in between.
template <class Op>
HWY_INLINE void RunPanelProduct(const cpu::PanelProduct& p) {
  constexpr int64_t kBlock = 512;
  constexpr int64_t kPanelBytes = cpu::kPanelColumns * cpu::kUnitBytes;
  const auto* x = static_cast<const char*>(p.x);
  const auto* w = static_cast<const char*>(p.panel);
  const auto* next = static_cast<const char*>(p.next);
  auto* tile = static_cast<char*>(p.tile);
  // Rows whole pages apart fall into one set of the first-level cache, which has 8 ways.
  constexpr int64_t kFewRows = Op::kMaxRows < 6 ? Op::kMaxRows : 6;
  const int64_t max_rows = p.x_row_bytes % 4096 == 0 ? kFewRows : Op::kMaxRows;
  const int64_t block = p.rows <= max_rows ? p.groups : kBlock;
  for (int64_t g = 0; g < p.groups; g += block) {
    const int64_t groups = block < p.groups - g ? block : p.groups - g;
    const char* panel = w + g * kPanelBytes;
    for (int64_t r = 0, pass = 0; r < p.rows; ++pass) {
      // The last two blocks share their rows evenly: a block of one or two rows is slow.
      const int64_t left = p.rows - r;
      const int64_t rows = left >= 2 * max_rows ? max_rows
                           : left > max_rows    ? (left + 1) / 2
                                                : left;
      // The first pass reads this panel; the two after it ask for a line each of every group of the
      // next. Others ask for what they have.
      const bool asks = next != nullptr && (pass == 1 || pass == 2);
      const char* ahead = asks ? next + g * kPanelBytes + (pass - 1) * 64 : panel;
      DispatchRows<Op, Op::kMaxRows>(rows, x + r * p.x_row_bytes + g * cpu::kUnitBytes,
                                     p.x_row_bytes, panel, ahead, groups, tile + r * kPanelBytes,
                                     g == 0);
      r += rows;
    }
  }
}
