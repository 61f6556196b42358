#include "kernels/linear/weight.h"

#include <cstring>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/linear/linear_cpu.h"
#include "kernels/runtime/device.h"

namespace quintet {
namespace {

// The largest k of int8 weights on the CPU: i32 sums of k products u8 * i8 must not overflow, so
// 255 * 127 * k < 2^31.
constexpr int64_t kMaxI8K = 66000;

absl::Status TooLarge(int64_t n, int64_t k) {
  return absl::ResourceExhaustedError(
      absl::StrCat("weight matrix too large: ", n, " x ", k, " values"));
}

}  // namespace

absl::StatusOr<LinearWeight> LinearWeight::Describe(int64_t n, int64_t k, WeightType type,
                                                    bool gated, Device* device) {
  QT_CHECK(n > 0 && k > 0);
  QT_CHECK(!gated || n % 2 == 0);
  QT_CHECK(WeightTypeSupported(type, device));
  QT_CHECK(type != WeightType::kI8 || device != nullptr || k <= kMaxI8K);
  LinearWeight w;
  w.n_ = n;
  w.k_ = k;
  w.type_ = type;
  w.gated_ = gated;
  w.device_ = device;
  if (device != nullptr) {
    const int64_t row_bytes = k * DTypeBytes(WeightDType(type));
    if (n > std::numeric_limits<int64_t>::max() / 2 / row_bytes) return TooLarge(n, k);
    w.panel_bytes_ = n * row_bytes;
    w.channel_bytes_ = IsQuantized(type) ? n * 4 : 0;
    return w;
  }
  const int64_t panels = cpu::Panels(w);
  const int64_t panel_bytes = cpu::Groups(w) * cpu::kPanelColumns * cpu::kUnitBytes;
  if (panels > std::numeric_limits<int64_t>::max() / 2 / panel_bytes) {
    return TooLarge(n, k);
  }
  w.panel_bytes_ = panels * panel_bytes;
  w.channel_bytes_ = type == WeightType::kI8 ? panels * cpu::kPanelColumns * 8 : 0;
  return w;
}

absl::StatusOr<LinearWeight> LinearWeight::Allocate(int64_t n, int64_t k, WeightType type,
                                                    bool gated, Device* device) {
  QT_ASSIGN_OR_RETURN(LinearWeight w, Describe(n, k, type, gated, device));
  // On a device W is padded with rows of zeros to a multiple of eight rows, which some cuBLASLt
  // GEMMs need (linear/cublas_plans.cu).
  const int64_t used_bytes = w.panel_bytes_, padding = (8 - n % 8) % 8;
  if (device != nullptr) w.panel_bytes_ += padding * (used_bytes / n);
  QT_ASSIGN_OR_RETURN(w.panel_memory_, device == nullptr ? Buffer::Allocate(w.panel_bytes_)
                                                         : device->Allocate(w.panel_bytes_));
  w.panels_ = w.panel_memory_.data();
  if (device != nullptr) {
    const std::vector<char> zeros(static_cast<size_t>(w.panel_bytes_ - used_bytes));
    if (!zeros.empty()) {
      device->Write(w.panel_memory_.as<char>() + used_bytes, zeros.data(),
                    w.panel_bytes_ - used_bytes);
    }
    QT_ASSIGN_OR_RETURN(w.channel_memory_, device->Allocate(w.channel_bytes_));
    w.channels_ = w.channel_memory_.data();
    return w;
  }
  // Zero the last panel, because Pack does not write its columns past channel n.
  const int64_t last = w.panel_bytes_ / cpu::Panels(w);
  std::memset(w.panel_memory_.as<char>() + w.panel_bytes_ - last, 0, static_cast<size_t>(last));
  if (type == WeightType::kI8) {
    QT_ASSIGN_OR_RETURN(w.channel_memory_, Buffer::Allocate(w.channel_bytes_));
    std::memset(w.channel_memory_.data(), 0, static_cast<size_t>(w.channel_bytes_));
    w.channels_ = w.channel_memory_.data();
  }
  return w;
}

}  // namespace quintet
