// A cache of captured CUDA graphs. Launching one graph replaces many kernel launches. However,
// capturing and instantiating a graph can take as much time as hundreds of launches of that graph
// save. The cache therefore captures a key's work only when that key is used often enough, and
// keeps a bounded number of keys.
//
// Policy:
//   threshold  A key is used `threshold` times without a graph; its next use captures one. At least
//              1: objects that the work creates on its first use must exist before the capture.
//   capacity   Maximum number of keys, with or without a graph. A new key evicts the least
//              recently used one when the cache is full.
// A capture that fails (null) leaves the key without a graph; it is tried again after `threshold`
// more uses.
//
// A graph replays the launches of its capture on the same addresses. The key must therefore contain
// everything that decides which launches are enqueued, with which arguments; values that differ
// between uses of one key must be read from device memory. Call Clear when captured addresses are
// no longer valid. Evicted graphs may still be running: the device frees them when they finish.
//
// Not thread safe. Test: tests/kernels/runtime/graph_cache_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "kernels/base/check.h"
#include "kernels/runtime/device.h"

namespace quintet {

struct GraphCacheOptions {
  int64_t threshold = 1;  // uses of a key before the use that captures it
  size_t capacity = 128;  // maximum number of keys
};

// Template parameters: Key is copyable and ordered by operator<; Graph is one captured graph, or a
// struct of several.
template <typename Key, typename Graph = CudaGraph>
class GraphCache {
 public:
  using Capture = absl::FunctionRef<std::unique_ptr<Graph>()>;

  explicit GraphCache(const GraphCacheOptions& options) : options_(options) {
    QT_CHECK_GE(options.threshold, 1);
    QT_CHECK_GE(options.capacity, size_t{1});
  }

  // Counts one use of `key` and returns its graph, which the caller launches; the pointer is valid
  // until the next call. If the key has no graph but has already had `threshold` uses without one,
  // this call first captures a graph with `capture`. Returns null if there is still no graph; the
  // caller then enqueues the work as usual. Exceptions that `capture` throws pass through.
  const Graph* Use(const Key& key, Capture capture) {
    Entry& entry = MostRecent(key);
    if (entry.graph != nullptr) return entry.graph.get();
    if (entry.uses < options_.threshold) {
      ++entry.uses;
      return nullptr;
    }
    entry.uses = 0;
    entry.graph = capture();
    return entry.graph.get();
  }

  // Drops all keys and graphs.
  void Clear() {
    index_.clear();
    entries_.clear();
  }

  size_t size() const { return entries_.size(); }  // number of keys

 private:
  struct Entry {
    Key key;
    int64_t uses = 0;  // without a graph, since the last attempt to capture
    std::unique_ptr<Graph> graph;
  };
  struct LessKey {
    bool operator()(const Key* a, const Key* b) const { return *a < *b; }
  };

  // Returns the entry of `key` after moving it to the front of entries_. A new key gets a new
  // entry; if the cache is full, the least recently used entry is removed first.
  Entry& MostRecent(const Key& key) {
    const auto found = index_.find(&key);
    if (found != index_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return entries_.front();
    }
    if (entries_.size() >= options_.capacity) {
      index_.erase(&entries_.back().key);
      entries_.pop_back();
    }
    entries_.push_front({.key = key});
    index_.emplace(&entries_.front().key, entries_.begin());
    return entries_.front();
  }

  const GraphCacheOptions options_;
  std::list<Entry> entries_;  // most recently used first
  std::map<const Key*, typename std::list<Entry>::iterator, LessKey> index_;
};

}  // namespace quintet
