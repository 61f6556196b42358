// The key/value cache: keys and values of all layers in fixed-size pages, as in PagedAttention
// (Kwon et al. 2023).
//
// Ops address tokens by slot: slot = page * page_size + index within the page. Which request owns
// which page is decided by engine/kv_pool.h. Keys of self-attention and of cross-attention share
// one pool of pages.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

// A view; the memory belongs to the model.
struct KvCache {
  void* data = nullptr;       // [pages, layers, 2 (key, value), heads, page_size, head_dim]
  DType dtype = DType::kF32;  // f32 on the CPU, the activations' type on a GPU
  int64_t pages = 0, layers = 0, heads = 0, page_size = 0, head_dim = 0;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t page_elements() const { return layers * 2 * heads * page_size * head_dim; }
  // The head_dim values of (layer, key or value, head) in a slot begin at element SlotOffset(slot)
  // + ChunkOffset(layer, value, head).
  int64_t SlotOffset(int64_t slot) const {
    return slot / page_size * page_elements() + slot % page_size * head_dim;
  }
  int64_t ChunkOffset(int64_t layer, bool value, int64_t head) const {
    return ((layer * 2 + (value ? 1 : 0)) * heads + head) * page_size * head_dim;
  }
};

// Copies the keys and values of new tokens into their slots.
struct StoreKvArgs {
  Tensor k, v;  // [rows, heads, head_dim] of the cache's type, any row stride
  const KvCache* cache = nullptr;
  int64_t layer = 0;
  absl::Span<const int32_t> slots;  // [rows] mirrored; -1: the row is not kept
};
void StoreKv(const StoreKvArgs& args, Stream& stream);

}  // namespace quintet
