// Panel products with AMX: tiles of 16 rows by 64 bytes, multiplied into 16 x 16 accumulators in
// the core's matrix unit. A packed panel is a column of such tiles as it lies: 16 groups of 16
// columns, 128 bytes apart. See linear_cpu.h.
#include "kernels/cpu_features.h"
#include "kernels/linear_cpu.h"

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

// What LDTILECFG reads. Tiles 0..3 accumulate (row tile 0: 0, 1; row tile 1: 2, 3), 4 and 5 hold
// activations, 6 and 7 weights.
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

// The last groups of a product whose number is no multiple of 16, padded with zeros.
struct Rest {
  alignas(64) char x[2 * kSide * kRowBytes];
  alignas(64) char w[kSide * kPanelBytes];
};

void CopyRest(const cpu::PanelProduct& p, int64_t group, int64_t row, int64_t rows, Rest* rest) {
  const size_t bytes = static_cast<size_t>((p.groups - group) * cpu::kUnitBytes);
  std::memset(rest, 0, sizeof(*rest));
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(rest->x + r * kRowBytes,
                static_cast<const char*>(p.x) + (row + r) * p.x_row_bytes + group * cpu::kUnitBytes,
                bytes);
  }
  std::memcpy(rest->w, static_cast<const char*>(p.panel) + group * kPanelBytes,
              bytes * cpu::kPanelColumns);
}

// The intrinsics do not tell the compiler what memory they read: stores to it must have happened.
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

// Asks for sixteen groups of a panel ahead of their use.
void Fetch(const char* w) {
  for (int64_t i = 0; i < kSide * kPanelBytes; i += 64) __builtin_prefetch(w + i, 0, 2);
}

// Sixteen groups: x [rows, 64 bytes], w [16, 128 bytes].
template <class Op>
QUINTET_AMX void Multiply(const char* x, int64_t x_row_bytes, const char* w, bool second) {
  _tile_loadd(6, w, kPanelBytes);
  _tile_loadd(7, w + kRowBytes, kPanelBytes);
  _tile_loadd(4, x, x_row_bytes);
  if (second) _tile_loadd(5, x + kSide * x_row_bytes, x_row_bytes);
  Op::Column(second);
}

// Up to 32 rows of the panel's products.
template <class Op>
QUINTET_AMX void RowBlock(const cpu::PanelProduct& p, int64_t row, int64_t rows) {
  const bool second = rows > kSide;
  const char* x = static_cast<const char*>(p.x) + row * p.x_row_bytes;
  const char* w = static_cast<const char*>(p.panel);
  _tile_zero(0);
  _tile_zero(1);
  if (second) {
    _tile_zero(2);
    _tile_zero(3);
  }
  const char* next = row == 2 * kSide ? static_cast<const char*>(p.next) : nullptr;
  int64_t g = 0;
  for (; g + kSide <= p.groups; g += kSide) {
    if (next != nullptr) Fetch(next + g * kPanelBytes);
    Multiply<Op>(x + g * cpu::kUnitBytes, p.x_row_bytes, w + g * kPanelBytes, second);
  }
  if (g < p.groups) {
    Rest rest;
    CopyRest(p, g, row, rows, &rest);
    StoresDone(&rest);
    Multiply<Op>(rest.x, kRowBytes, rest.w, second);
  }
  char* tile = static_cast<char*>(p.tile) + row * kPanelBytes;
  _tile_stored(0, tile, kPanelBytes);
  _tile_stored(1, tile + kRowBytes, kPanelBytes);
  if (!second) return;
  _tile_stored(2, tile + kSide * kPanelBytes, kPanelBytes);
  _tile_stored(3, tile + kSide * kPanelBytes + kRowBytes, kPanelBytes);
}

template <class Op>
QUINTET_AMX void Panel(const cpu::PanelProduct& p) {
  int64_t configured = 0;
  for (int64_t row = 0; row < p.rows;) {
    const int64_t rows = std::min(2 * kSide, p.rows - row);
    if (rows != configured) {
      const TileConfig config =
          ConfigFor(std::min(rows, kSide), std::max<int64_t>(rows - kSide, 0));
      StoresDone(&config);
      _tile_loadconfig(&config);
      configured = rows;
    }
    RowBlock<Op>(p, row, rows);
    row += rows;
  }
  _tile_release();
}

}  // namespace

namespace cpu {
PanelProductFunction AmxI8PanelProduct() { return CpuHasAmx() ? &Panel<I8> : nullptr; }
PanelProductFunction AmxBf16PanelProduct() { return CpuHasAmx() ? &Panel<Bf16> : nullptr; }
}  // namespace cpu
}  // namespace quintet

#else

namespace quintet::cpu {
PanelProductFunction AmxI8PanelProduct() { return nullptr; }
PanelProductFunction AmxBf16PanelProduct() { return nullptr; }
}  // namespace quintet::cpu

#endif
