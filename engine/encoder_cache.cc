#include "engine/encoder_cache.h"

#include <algorithm>
#include <new>

namespace quintet {
namespace {

uint64_t HashKey(const std::vector<int32_t>& ids, uint64_t adapter) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a over words, then a finaliser
  hash = (hash ^ adapter) * 0x100000001b3u;
  for (int32_t id : ids) hash = (hash ^ static_cast<uint32_t>(id)) * 0x100000001b3u;
  hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93u;
  return hash ^ (hash >> 32);
}

}  // namespace

int64_t EncoderCache::Entry::bytes() const {
  return static_cast<int64_t>(sizeof(Entry) + ids.size() * sizeof(int32_t) +
                              states->size() * sizeof(float));
}

EncoderCache::Entries::iterator EncoderCache::Lookup(uint64_t hash, const std::vector<int32_t>& ids,
                                                     uint64_t adapter) {
  const auto [begin, end] = by_hash_.equal_range(hash);
  const auto found = std::find_if(begin, end, [&](const auto& entry) {
    return entry.second->ids == ids && entry.second->adapter == adapter;
  });
  return found == end ? entries_.end() : found->second;
}

EncodedStates EncoderCache::Find(const std::vector<int32_t>& ids, uint64_t adapter) {
  if (!enabled()) return {};
  ++queries_;
  const Entries::iterator entry = Lookup(HashKey(ids, adapter), ids, adapter);
  if (entry == entries_.end()) return {};
  ++hits_;
  entries_.splice(entries_.begin(), entries_, entry);
  const Tensor states =
      Tensor::F32(entry->states->data(), {static_cast<int64_t>(ids.size()), entry->columns});
  return {.states = states, .host = states, .owner = entry->states};
}

void EncoderCache::Insert(const std::vector<int32_t>& ids, uint64_t adapter, const Tensor& states) {
  if (!enabled()) return;
  const uint64_t hash = HashKey(ids, adapter);
  if (Lookup(hash, ids, adapter) != entries_.end()) return;
  QT_CHECK_EQ(states.dim[0], static_cast<int64_t>(ids.size()));
  const int64_t columns = states.dim[1];
  const int64_t bytes = static_cast<int64_t>(
      sizeof(Entry) + ids.size() * (sizeof(int32_t) + columns * sizeof(float)));
  if (bytes > capacity_bytes_) return;
  while (used_bytes_ + bytes > capacity_bytes_) DropOldest();
  try {
    auto copy = std::make_shared<std::vector<float>>();
    copy->reserve(ids.size() * columns);
    for (int64_t row = 0; row < states.dim[0]; ++row) {
      const float* data = states.f32() + row * states.stride[0];
      copy->insert(copy->end(), data, data + columns);
    }
    Entries entry;
    entry.push_front({hash, ids, adapter, std::move(copy), columns});
    by_hash_.emplace(hash, entry.begin());
    entries_.splice(entries_.begin(), entry);
  } catch (const std::bad_alloc&) {
    return;
  }
  used_bytes_ += entries_.front().bytes();
}

void EncoderCache::DropOldest() {
  const Entries::iterator oldest = std::prev(entries_.end());
  const auto [begin, end] = by_hash_.equal_range(oldest->hash);
  by_hash_.erase(
      std::find_if(begin, end, [oldest](const auto& entry) { return entry.second == oldest; }));
  used_bytes_ -= oldest->bytes();
  entries_.pop_back();
}

}  // namespace quintet
