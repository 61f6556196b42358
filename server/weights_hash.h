// The SHA-256 of a model's weight files, read in the background at the lowest priority so that
// neither the start nor the calls wait for it. Thread safe.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>

namespace quintet {

class WeightsHash {
 public:
  // Begins to read. `follow_symlinks`: as the model was loaded.
  WeightsHash(const std::string& directory, bool follow_symlinks);
  // Stops within a few milliseconds, ready or not.
  ~WeightsHash();
  WeightsHash(const WeightsHash&) = delete;
  WeightsHash& operator=(const WeightsHash&) = delete;

  // 64 hexadecimal digits of model.safetensors, or of the shards' bytes in the order of their
  // names; empty until they are known, and when the files can no longer be read.
  std::string value() const;

 private:
  void Run(const std::string& directory, bool follow_symlinks);

  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::string value_;
  std::thread thread_;
};

}  // namespace quintet
