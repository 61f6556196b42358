#include "kernels/runtime/grid_wait_right.h"

#include <mutex>
#include <set>

namespace quintet {
namespace {

std::mutex mutex;

// Ordinals of the GPUs for which a GridWaitRight is held. Guarded by `mutex`.
std::set<int>& Taken() {
  static auto* const taken = new std::set<int>;
  return *taken;
}

}  // namespace

GridWaitRight::~GridWaitRight() {
  if (!ordinal_.has_value()) return;
  std::lock_guard<std::mutex> lock(mutex);
  Taken().erase(*ordinal_);
}

bool GridWaitRight::Take(int ordinal) {
  if (ordinal_.has_value()) return true;
  std::lock_guard<std::mutex> lock(mutex);
  if (Taken().insert(ordinal).second) ordinal_ = ordinal;
  return ordinal_.has_value();
}

}  // namespace quintet
