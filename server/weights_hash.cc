#include "server/weights_hash.h"

#include <sys/resource.h>
#include <unistd.h>

#include "models/checkpoint/sha256.h"
#include "models/checkpoint/weight_files.h"
#include "spdlog/spdlog.h"

namespace quintet {

WeightsHash::WeightsHash(const std::string& model, bool follow_symlinks)
    : thread_([=, this] { Run(model, follow_symlinks); }) {}

WeightsHash::~WeightsHash() {
  stop_ = true;
  thread_.join();
}

std::string WeightsHash::value() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return value_;
}

void WeightsHash::Run(const std::string& model, bool follow_symlinks) {
  // On Linux, setpriority with a thread id changes the priority of that thread only. An error is
  // ignored.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19);
  Sha256 hash;
  const auto files = WeightFiles::Open(model, follow_symlinks);
  absl::Status status = files.status();
  if (status.ok()) {
    status = (*files)->ReadFiles([&](const void* data, int64_t bytes) {
      hash.Update(data, static_cast<size_t>(bytes));
      return !stop_;
    });
  }
  if (!status.ok()) {
    spdlog::warn("cannot compute the SHA-256 of the weights: {}", std::string(status.message()));
    return;
  }
  if (stop_) return;
  std::lock_guard<std::mutex> lock(mutex_);
  value_ = hash.Finish();
}

}  // namespace quintet
