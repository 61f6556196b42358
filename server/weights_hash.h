// Computes the SHA-256 of the weight files of a model in a background thread of the lowest
// priority, so that it delays neither the start nor the calls. Thread-safe.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>

namespace quintet {

class WeightsHash {
 public:
  // Starts the thread. `follow_symlinks` must be the value that the model was loaded with.
  WeightsHash(const std::string& directory, bool follow_symlinks);
  // Stops the thread within a few milliseconds, even if the hash is not complete.
  ~WeightsHash();
  WeightsHash(const WeightsHash&) = delete;
  WeightsHash& operator=(const WeightsHash&) = delete;

  // Returns the hash of model.safetensors, or of the concatenated shards in the order of their
  // names, as 64 hexadecimal digits. Empty until the hash is complete, and if the files cannot be
  // read.
  std::string value() const;

 private:
  void Run(const std::string& directory, bool follow_symlinks);

  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::string value_;
  std::thread thread_;
};

}  // namespace quintet
