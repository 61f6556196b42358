// LRU cache of encoder outputs in host memory, keyed by the exact token ids and the adapter
// (PackedAdapter::id), and limited in bytes. A repeated input is not encoded again, even if the
// decoder prompt or the number of beams differs. Not thread safe.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "kernels/base/tensor.h"

namespace quintet {

// Encoder output of one input, [rows, d_model] f32.
struct EncodedStates {
  Tensor states;  // in memory of the model's backend; from the cache: in host memory
  // Rows in host memory, valid after the event `downloaded`. If pooled_rows > 0, the first
  // pooled_rows rows are the results of pooling on the device (ForEachPoolSegment). Otherwise row i
  // is a copy of row i of `states`, valid only if EncoderRunner::EnqueueDownload copies that row.
  Tensor host;
  int64_t pooled_rows = 0;
  int downloaded = -1;  // index of the event that follows the download; -1: host is valid
  std::shared_ptr<const std::vector<float>> owner;  // keeps both alive; null: the model does
};

class EncoderCache {
 public:
  // Capacity 0: caching is off.
  explicit EncoderCache(int64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  bool enabled() const { return capacity_bytes_ > 0; }
  // Returns the cached hidden states of exactly these token ids with this adapter (0: none); the
  // result's `owner` keeps them alive. If they are not cached, `owner` is null.
  EncodedStates Find(const std::vector<int32_t>& ids, uint64_t adapter);
  // Stores a copy of the host tensor `states`, evicting the least recently used entries. Does
  // nothing if the copy exceeds the capacity or its allocation fails.
  void Insert(const std::vector<int32_t>& ids, uint64_t adapter, const Tensor& states);

  int64_t used_bytes() const { return used_bytes_; }
  int64_t queries() const { return queries_; }
  int64_t hits() const { return hits_; }

 private:
  struct Entry {
    uint64_t hash;  // of ids and adapter
    std::vector<int32_t> ids;
    uint64_t adapter;
    std::shared_ptr<const std::vector<float>> states;  // [ids, columns]
    int64_t columns;                                   // d_model
    int64_t bytes() const;
  };
  using Entries = std::list<Entry>;  // most recently used first

  Entries::iterator Lookup(uint64_t hash, const std::vector<int32_t>& ids, uint64_t adapter);
  void DropOldest();

  int64_t capacity_bytes_;
  int64_t used_bytes_ = 0, queries_ = 0, hits_ = 0;
  Entries entries_;
  std::unordered_multimap<uint64_t, Entries::iterator> by_hash_;
};

}  // namespace quintet
