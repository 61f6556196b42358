// Keys and values of all layers in pages, addressed by slots: slot = page * page_size + index within the page. Who owns which page is
// the engine's business (engine/kv_pool.h); ops see only slots. A request's self-attention and cross-attention keys live in
// the same pool of pages.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

struct KvCache {
  void* data = nullptr;  // [pages, layers, 2 (key, value), heads, page_size, head_dim]
  DType dtype = DType::kF32;  // of activations: f32 on the CPU
  int64_t pages = 0, layers = 0, heads = 0, page_size = 0, head_dim = 0;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t page_elements() const { return layers * 2 * heads * page_size * head_dim; }
  // Offset in elements of the head_dim values of (layer, key or value, head) in a slot = SlotOffset + ChunkOffset.
  int64_t SlotOffset(int64_t slot) const {
    return slot / page_size * page_elements() + slot % page_size * head_dim;
  }
  int64_t ChunkOffset(int64_t layer, bool value, int64_t head) const {
    return ((layer * 2 + (value ? 1 : 0)) * heads + head) * page_size * head_dim;
  }
};

// Copies new keys and values into their slots.
struct StoreKvArgs {
  Tensor k, v;  // [rows, heads, head_dim] of the cache's type, any row stride
  const KvCache* cache = nullptr;
  int64_t layer = 0;
  absl::Span<const int32_t> slots;  // [rows]; -1: the row is not kept
};
void StoreKv(const StoreKvArgs& args, Stream& stream);

}  // namespace quintet
