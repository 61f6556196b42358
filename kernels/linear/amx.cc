// CPU GEMM kernels with AMX. A kernel multiplies rows of x by one panel, the packed weights of 32
// output channels (linear_cpu.h). An AMX input tile has 16 rows of 64 bytes; the products of two
// input tiles are added to an accumulator tile of 16 x 16 values. Weight tiles are loaded directly
// from the panel: row i of a tile holds group i of k (4 int8 or 2 bf16 consecutive values) for 16
// of the panel's 32 channels. In the panel these rows are 128 bytes apart.
#include "kernels/linear/linear_cpu.h"
#include "kernels/runtime/cpu_features.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#define QUINTET_AMX __attribute__((target("amx-tile,amx-int8,amx-bf16")))

namespace quintet {
namespace {

constexpr int64_t kPanelBytes = cpu::kPanelColumns * cpu::kUnitBytes;
constexpr int64_t kSide = 16;  // rows of a tile, and 4-byte units of one of its rows
constexpr int64_t kRowBytes = 64;

// Operand of LDTILECFG, which sets the shapes of the eight AMX tiles. For a block of up to 32 rows
// of x, tiles 0 and 1 accumulate the first 16 rows and tiles 2 and 3 the other rows; tiles 4 and 5
// hold activations, tiles 6 and 7 weights.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

TileConfig ConfigFor(int64_t rows0, int64_t rows1) {
  TileConfig config;
  const int64_t rows[8] = {rows0, rows0, rows1, rows1, rows0, rows1, kSide, kSide};
  for (int i = 0; i < 8; ++i) {
    config.rows[i] = static_cast<uint8_t>(rows[i]);
    config.row_bytes[i] = rows[i] == 0 ? 0 : kRowBytes;
  }
  return config;
}

// A group is the 4 int8 or 2 bf16 consecutive values of k that a panel of weights stores together:
// 128 bytes for its 32 channels. A weight tile has 16 groups. The last 1 to 15 groups
// of a panel may not fill a weight tile; this struct is a zero-padded copy of these groups.
struct Rest {
  alignas(64) char w[kSide * kPanelBytes];
};

// Compiler barrier: the AMX load intrinsics do not declare which memory they read, so without it
// the compiler could move earlier stores past them.
void StoresDone(const void* place) { asm volatile("" : : "r"(place) : "memory"); }

struct I8 {
  static QUINTET_AMX void Column(bool second) {
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    if (!second) return;
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
};

struct Bf16 {
  static QUINTET_AMX void Column(bool second) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (!second) return;
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
};

// Cache lines to prefetch.
struct Lines {
  const char* begin;
  int64_t count;
};
inline void Prefetch(const char* at, int64_t lines) {
  for (int64_t i = 0; i < lines; ++i) __builtin_prefetch(at + i * 64, 0, 2);
}

// Multiplies x [rows, 64 bytes] by w [16, 128 bytes], which hold sixteen groups of k (4 int8 or 2
// bf16 values each), and adds the products to the accumulator tiles. `second`: x has more than 16
// rows. Also prefetches the cache lines `ahead`: at most sixteen of them before each of the two
// loads of a weight tile, because more at once would fill the core's line fill buffers.
template <class Op>
QUINTET_AMX void Multiply(const char* x, const char* w, bool second, const Lines& ahead) {
  const int64_t lines = std::min(ahead.count, kSide);
  Prefetch(ahead.begin, lines);
  _tile_loadd(6, w, kPanelBytes);
  Prefetch(ahead.begin + lines * 64, ahead.count - lines);
  _tile_loadd(7, w + kRowBytes, kPanelBytes);
  _tile_loadd(4, x, kRowBytes);
  if (second) _tile_loadd(5, x + kSide * kRowBytes, kRowBytes);
  Op::Column(second);
}

// Multiplies one block of up to 32 rows of x by one panel of weights (32 output channels). Stores
// the results, which are sums over all of k, in p.tile.
template <class Op>
QUINTET_AMX void RowBlock(const cpu::PanelGemm& p, int64_t block) {
  const int64_t rows = p.x->BlockRows(block);
  const bool second = rows > kSide;
  const char* x = p.x->Block(block);
  _tile_zero(0);
  _tile_zero(1);
  if (second) {
    _tile_zero(2);
    _tile_zero(3);
  }
  // Choose the weights to prefetch while this block of rows is multiplied. If there is a next panel
  // and x has several blocks, each block prefetches an equal part of the next panel. Otherwise the
  // block prefetches the part of the current panel that it will multiply next.
  const bool asks = p.next != nullptr && p.x->blocks > 1;
  Lines ahead = {p.panel + kSide * kPanelBytes, 2 * kSide};  // the next sixteen groups
  if (asks) {
    ahead = {p.next + p.groups * kPanelBytes / p.x->blocks * block, 2 * kSide / p.x->blocks + 1};
  }
  int64_t g = 0;
  for (; g + kSide <= p.groups; g += kSide, ahead.begin += ahead.count * 64) {
    Multiply<Op>(x + g * rows * cpu::kUnitBytes, p.panel + g * kPanelBytes, second, ahead);
  }
  if (g < p.groups) {
    Rest rest = {};
    std::memcpy(rest.w, p.panel + g * kPanelBytes,
                static_cast<size_t>((p.groups - g) * kPanelBytes));
    StoresDone(&rest);
    Multiply<Op>(x + g * rows * cpu::kUnitBytes, rest.w, second, {nullptr, 0});
  }
  _tile_stored(0, p.tile, kPanelBytes);
  _tile_stored(1, p.tile + kRowBytes, kPanelBytes);
  if (!second) return;
  _tile_stored(2, p.tile + kSide * kPanelBytes, kPanelBytes);
  _tile_stored(3, p.tile + kSide * kPanelBytes + kRowBytes, kPanelBytes);
}

template <class Op>
QUINTET_AMX void Panel(const cpu::PanelGemm& p) {
  int64_t configured = 0;
  for (int64_t block = 0; block < p.x->blocks; ++block) {
    const int64_t row = p.x->BlockBegin(block), rows = p.x->BlockRows(block);
    if (rows != configured) {
      const TileConfig config =
          ConfigFor(std::min(rows, kSide), std::max<int64_t>(rows - kSide, 0));
      StoresDone(&config);
      _tile_loadconfig(&config);
      configured = rows;
    }
    RowBlock<Op>(p, block);
    StoresDone(p.tile);
    p.finish(p.tile, row, rows);
  }
  _tile_release();
}

}  // namespace

namespace cpu {
PanelKernel AmxI8PanelKernel() {
  if (!CpuHasAmx()) return {};
  return {&Panel<I8>, 2 * kSide, kSide};
}
PanelKernel AmxBf16PanelKernel() {
  if (!CpuHasAmx()) return {};
  return {&Panel<Bf16>, 2 * kSide, kSide};
}
}  // namespace cpu
}  // namespace quintet

#else

namespace quintet::cpu {
PanelKernel AmxI8PanelKernel() { return {}; }
PanelKernel AmxBf16PanelKernel() { return {}; }
}  // namespace quintet::cpu

#endif
