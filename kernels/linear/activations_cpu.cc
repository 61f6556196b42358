// Packing of activations: chunks of rows in the order in which the panel kernels read them. See
// linear_cpu.h.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/linear/linear_cpu.h"
#include "kernels/runtime/cpu_features.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear/activations_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quintet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using QuantizeD = hn::CappedTag<float, 16>;

// Returns how a row of k values is quantised to int8, symmetrically: a value becomes the integer
// nearest to value * inverse, and that integer represents integer * scale. With the largest
// magnitude absmax of the row, inverse = 127 / absmax and scale = absmax / 127. A row with a
// non-finite value gets the scale NaN, which makes all its outputs NaN.
cpu::RowScale ScaleOfRowHere(const float* HWY_RESTRICT x, int64_t k) {
  const QuantizeD d;
  const hn::RebindToSigned<QuantizeD> di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t whole = k / lanes * lanes;
  HWY_ALIGN float tail[16] = {};
  std::copy_n(x + whole, k - whole, tail);
  // The largest magnitude is found by comparing bits as integers: the bits of non-negative floats
  // have the same order as the floats, and the bits of NaN are larger than those of any number.
  const auto magnitude = hn::Set(di, 0x7fffffff);
  auto most = hn::And(hn::BitCast(di, hn::Load(d, tail)), magnitude);
  for (int64_t i = 0; i < whole; i += lanes) {
    most = hn::Max(most, hn::And(hn::BitCast(di, hn::LoadU(d, x + i)), magnitude));
  }
  const float absmax = hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(di, most)));
  const bool finite = std::isfinite(absmax);
  cpu::RowScale row;
  row.scale = finite ? absmax / 127.0f : std::numeric_limits<float>::quiet_NaN();
  // For a denormal maximum, 127 / absmax would be infinite; such a row is quantised to zeros.
  row.inverse = finite && absmax > 1e-35f ? 127.0f / absmax : 0.0f;
  return row;
}

void QuantizeValuesHere(const float* HWY_RESTRICT x, int64_t n, float inverse,
                        uint8_t* HWY_RESTRICT y) {
  const QuantizeD d;
  const hn::RebindToSigned<QuantizeD> di;
  const hn::Rebind<uint8_t, QuantizeD> du8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t whole = n / lanes * lanes;
  const auto factor = hn::Set(d, inverse);
  const auto quantize = [&](hn::Vec<QuantizeD> v) HWY_ATTR {
    return hn::DemoteTo(du8, hn::Add(hn::NearestInt(hn::Mul(v, factor)), hn::Set(di, 128)));
  };
  for (int64_t i = 0; i < whole; i += lanes) {
    hn::StoreU(quantize(hn::LoadU(d, x + i)), du8, y + i);
  }
  if (whole == n) return;
  HWY_ALIGN float tail[16] = {};
  std::copy_n(x + whole, n - whole, tail);
  HWY_ALIGN uint8_t rest[16];
  hn::StoreU(quantize(hn::Load(d, tail)), du8, rest);
  std::copy_n(rest, (n + 3) / 4 * 4 - whole, y + whole);
}

#if HWY_TARGET != HWY_SCALAR
// Implements InterleaveUnits (the transpose of a matrix [rows, groups] of 4-byte units) in squares
// of 4 x 4 units. `rows` and `groups` must be at least 4; if one is not a multiple of 4, the last
// squares overlap their neighbours.
void InterleaveSquares(const char* HWY_RESTRICT in, int64_t row_bytes, int64_t rows, int64_t groups,
                       char* HWY_RESTRICT out) {
  const auto load = [](const char* p) HWY_ATTR {
    return hn::LoadU(hn::Full128<uint32_t>(), reinterpret_cast<const uint32_t*>(p));
  };
  const auto store = [](hn::Vec<hn::Full128<uint64_t>> v, char* p) HWY_ATTR {
    hn::StoreU(v, hn::Full128<uint64_t>(), reinterpret_cast<uint64_t*>(p));
  };
  const int64_t group_bytes = rows * cpu::kUnitBytes;
  const hn::Full128<uint32_t> d;
  const hn::Full128<uint64_t> d64;
  for (int64_t done = 0; done < groups; done += 4) {
    const int64_t g = std::min(done, groups - 4);
    for (int64_t r0 = 0; r0 < rows; r0 += 4) {
      const int64_t r = std::min(r0, rows - 4);
      const char* from = in + r * row_bytes + g * cpu::kUnitBytes;
      const auto a = load(from), b = load(from + row_bytes);
      const auto c = load(from + 2 * row_bytes), e = load(from + 3 * row_bytes);
      const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(d, a, b));
      const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(d, a, b));
      const auto ce_low = hn::BitCast(d64, hn::InterleaveLower(d, c, e));
      const auto ce_high = hn::BitCast(d64, hn::InterleaveUpper(d, c, e));
      char* to = out + g * group_bytes + r * cpu::kUnitBytes;
      store(hn::InterleaveLower(d64, ab_low, ce_low), to);
      store(hn::InterleaveUpper(d64, ab_low, ce_low), to + group_bytes);
      store(hn::InterleaveLower(d64, ab_high, ce_high), to + 2 * group_bytes);
      store(hn::InterleaveUpper(d64, ab_high, ce_high), to + 3 * group_bytes);
    }
  }
}
#endif

// out[g][r] = in[r][g], 4-byte units. The rows of `in` are `row_bytes` apart; `out` is dense.
void InterleaveUnits(const char* HWY_RESTRICT in, int64_t row_bytes, int64_t rows, int64_t groups,
                     char* HWY_RESTRICT out) {
  if (rows == 1) {
    std::memcpy(out, in, static_cast<size_t>(groups * cpu::kUnitBytes));
    return;
  }
#if HWY_TARGET != HWY_SCALAR
  if (rows >= 4 && groups >= 4) return InterleaveSquares(in, row_bytes, rows, groups, out);
#endif
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(out + (g * rows + r) * cpu::kUnitBytes, in + r * row_bytes + g * cpu::kUnitBytes,
                  cpu::kUnitBytes);
    }
  }
}

}  // namespace quintet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quintet {

HWY_EXPORT(ScaleOfRowHere);
HWY_EXPORT(QuantizeValuesHere);
HWY_EXPORT(InterleaveUnits);

namespace cpu {

RowScale ScaleOfRow(const float* x, int64_t k) {
  return HWY_DYNAMIC_DISPATCH(ScaleOfRowHere)(x, k);
}

void QuantizeValues(const float* x, int64_t n, float inverse, uint8_t* y) {
  HWY_DYNAMIC_DISPATCH(QuantizeValuesHere)(x, n, inverse, y);
}

int64_t MostChunkRows(const WeightView& w) {
  constexpr int64_t kFew = 48;  // enough rows to hide the reading of weights from memory
  return std::clamp(CpuSecondLevelCacheBytes() / 4 / (Groups(w) * kUnitBytes), kFew, kChunkRows);
}

int64_t ChunkRows(const WeightView& w, int64_t rows) {
  const int64_t most = MostChunkRows(w);
  const int64_t chunks = std::max<int64_t>(1, (rows + most - 1) / most);
  return (rows + chunks - 1) / chunks;
}

namespace {

constexpr int64_t kPieceGroups = 256;  // groups converted at once

int64_t PaddedGroups(const WeightView& w, const PanelKernel& kernel) {
  return (Groups(w) + kernel.run - 1) / kernel.run * kernel.run;
}

// Copies a matrix [rows, groups] of 4-byte units, with rows `row_bytes` apart, to an array
// [groups / run][rows][run]. Each row is cut into runs of `run` units, and the runs at the same
// position of all rows become adjacent in memory.
void ArrangeUnits(const void* units, int64_t row_bytes, int64_t rows, int64_t groups, int64_t run,
                  char* out) {
  const auto* in = static_cast<const char*>(units);
  if (run == 1) return HWY_DYNAMIC_DISPATCH(InterleaveUnits)(in, row_bytes, rows, groups, out);
  const int64_t run_bytes = run * kUnitBytes;
  for (int64_t g = 0; g < groups; g += run) {
    for (int64_t r = 0; r < rows; ++r, out += run_bytes) {
      std::memcpy(out, in + r * row_bytes + g * kUnitBytes, static_cast<size_t>(run_bytes));
    }
  }
}

// Packs one block of rows of x into the memory of that block in `a`. For f32 weights the values are
// copied unchanged. For i8 or bf16 weights they are first converted to u8 or bf16, in pieces of
// kPieceGroups four-byte units per row.
void PackBlock(const WeightView& w, const Tensor& x, const Activations& a, int64_t run,
               int64_t block) {
  const int64_t begin = a.BlockBegin(block), rows = a.BlockRows(block);
  const float* source = x.f32() + begin * x.stride[0];
  char* out = const_cast<char*>(a.Block(block));
  if (w.type() == WeightType::kF32) {
    return ArrangeUnits(source, x.stride[0] * 4, rows, a.groups, run, out);
  }
  const bool int8 = w.type() == WeightType::kI8;
  RowScale scales[kMostBlockRows];
  constexpr int64_t kPieceBytes = kPieceGroups * kUnitBytes;
  alignas(64) char piece[kMostBlockRows * kPieceBytes];
  for (int64_t g = 0; g < a.groups; g += kPieceGroups) {
    const int64_t groups = std::min(kPieceGroups, a.groups - g);
    const int64_t from = g * GroupSize(w.type());
    const int64_t values = std::min(groups * GroupSize(w.type()), w.k() - from);
    const int64_t valid = std::min(groups, Groups(w) - g);
    for (int64_t r = 0; r < rows; ++r) {
      char* units = piece + r * kPieceBytes;
      const float* row = source + r * x.stride[0] + from;
      if (int8) {
        // The scale is computed just before the row is quantised, not in a separate pass over all
        // rows, so that the row is still in the L1 cache then.
        if (g == 0) {
          scales[r] = ScaleOfRow(row, w.k());
          const_cast<float*>(a.scales)[begin + r] = scales[r].scale;
        }
        QuantizeValues(row, values, scales[r].inverse, reinterpret_cast<uint8_t*>(units));
      } else {
        Bf16RoundValues(row, values, reinterpret_cast<uint16_t*>(units));
      }
      std::fill(units + valid * kUnitBytes, units + groups * kUnitBytes, '\0');
    }
    ArrangeUnits(piece, kPieceBytes, rows, groups, run, out + g * rows * kUnitBytes);
  }
}

}  // namespace

int64_t ActivationBytes(const WeightView& w, int64_t rows) {
  const int64_t units = rows * PaddedGroups(w, ChoosePanelKernel(w.type(), rows));
  return units * kUnitBytes + (w.type() == WeightType::kI8 ? rows * 4 : 0);
}

Activations PackActivations(const WeightView& w, const Tensor& x, const Tensor& scratch,
                            ThreadPool& pool) {
  const PanelKernel kernel = ChoosePanelKernel(w.type(), x.dim[0]);
  Activations a;
  a.kernel = kernel;
  a.rows = x.dim[0];
  QT_CHECK_LE(a.rows, kChunkRows);
  QT_CHECK(scratch.defined());
  QT_CHECK_GE(scratch.elements() * DTypeBytes(scratch.dtype), ActivationBytes(w, a.rows));
  a.blocks = (a.rows + kernel.rows - 1) / kernel.rows;
  a.groups = PaddedGroups(w, kernel);
  a.data = scratch.as<char>();
  if (w.type() == WeightType::kI8) {
    a.scales = reinterpret_cast<const float*>(a.data + a.rows * a.groups * kUnitBytes);
  }
  constexpr int64_t kTaskValues = 16384;  // fewer are not worth waking a thread
  const int64_t task_blocks = std::clamp<int64_t>(kTaskValues / (w.k() * kernel.rows), 1, a.blocks);
  pool.ParallelFor((a.blocks + task_blocks - 1) / task_blocks, [&](int64_t task, int) {
    const int64_t end = std::min(a.blocks, (task + 1) * task_blocks);
    for (int64_t block = task * task_blocks; block < end; ++block) {
      PackBlock(w, x, a, kernel.run, block);
    }
  });
  return a;
}

}  // namespace cpu
}  // namespace quintet
#endif
