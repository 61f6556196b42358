// Parts of ModelLoader that model_loader.cc and model_configuration.cc share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "server/model_loader.h"

namespace quintet {

struct ModelLoader::Operation {
  enum class Kind : uint8_t { kLoad, kReplace, kChangeAdapters, kUnload };
  Kind kind = Kind::kLoad;
  std::shared_ptr<ServedModel> model;
  std::shared_ptr<const HostOptions> options;  // of the version to load
  // kReplace, kChangeAdapters: the options of the version that served when the operation began.
  std::shared_ptr<const HostOptions> previous;
  ModelDone done;           // may be null
  bool remove = false;      // kUnload: the configuration has no such model any more
  bool drained = false;     // kReplace: the serving version was retired before the load
  bool restoring = false;   // kReplace: the load has failed; `previous` is loaded again
  int64_t blocked_at = -1;  // it needs memory: not tried again while freed_ has this value
  absl::Status failure;     // why it restores
};

// A loaded version of a model. It is in ModelLoader::versions_ from Publish until it is freed.
struct ModelLoader::Version {
  std::shared_ptr<ServedModel> model;
  std::unique_ptr<ModelHost> host;
  ModelHostMemory memory;  // as planned; encoder_cache_bytes: the size that it got
  // Set when the last reference to `host` is released. The loader's thread then frees the version,
  // because the reference may be released by the engine thread, which ~ModelHost joins.
  std::shared_ptr<std::atomic<bool>> unused;
};

// Wakes the thread of the loader.
struct ModelLoader::Signal {
  void Notify() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      set = true;
    }
    condition.notify_one();
  }
  // Waits until Notify is called, at most for `limit`. Returns at once after an earlier Notify.
  void Wait(std::chrono::milliseconds limit) {
    std::unique_lock<std::mutex> lock(mutex);
    condition.wait_for(lock, limit, [this] { return set; });
    set = false;
  }

  std::mutex mutex;
  std::condition_variable condition;
  bool set = false;
};

// The changes that one reload of the configuration makes. Only the loader's thread uses it.
struct ModelLoader::Configuration {
  ConfigurationDone done;
  std::vector<ModelChange> changes;  // in the order of the configuration
  size_t pending = 0;                // changes whose outcome is not known

  size_t Add(const std::string& model) {
    ++pending;
    changes.push_back({model, ModelChange::Action::kUnchanged, {}});
    return changes.size() - 1;
  }
  void Changed(const std::string& model, ModelChange::Action action, ModelOutcome outcome);
};

}  // namespace quintet
