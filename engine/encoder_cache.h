// Encoder states of recent inputs: the same input asked again, with another prompt or beam width,
// is not encoded again. The least recently used go first when the bytes run out.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "kernels/tensor.h"

namespace quintet {

// Encoder states of one input, [rows, d_model] f32, and who keeps them: null when the model does.
struct EncodedStates {
  Tensor states;
  Tensor host;  // the same in memory of the host: those rows that it reads, after Synchronize
  std::shared_ptr<const std::vector<float>> owner;
};

class EncoderCache {
 public:
  // 0 bytes: always empty.
  explicit EncoderCache(int64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  bool enabled() const { return capacity_bytes_ > 0; }
  // States of exactly these ids, kept alive by their owner; undefined when not held.
  EncodedStates Find(const std::vector<int32_t>& ids);
  // Keeps a copy, unless it alone exceeds the capacity or there is no memory for it.
  void Insert(const std::vector<int32_t>& ids, const Tensor& states);

  int64_t used_bytes() const { return used_bytes_; }
  int64_t queries() const { return queries_; }
  int64_t hits() const { return hits_; }

 private:
  struct Entry {
    uint64_t hash;
    std::vector<int32_t> ids;
    std::shared_ptr<const std::vector<float>> states;
    int64_t columns;
    int64_t bytes() const;
  };
  using Entries = std::list<Entry>;  // most recently used first

  Entries::iterator Lookup(uint64_t hash, const std::vector<int32_t>& ids);
  void DropOldest();

  int64_t capacity_bytes_;
  int64_t used_bytes_ = 0, queries_ = 0, hits_ = 0;
  Entries entries_;
  std::unordered_multimap<uint64_t, Entries::iterator> by_hash_;
};

}  // namespace quintet
