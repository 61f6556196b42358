// The key/value cache: keys and values of all layers in fixed-size pages, as in PagedAttention
// (Kwon et al. 2023).
//
// Ops address a cached token by its slot: slot = page * page_size + index within the page.
// engine/kv_pool.h assigns pages to requests. Self-attention and cross-attention share one pool of
// pages.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/tensor.h"

namespace quintet {

class Stream;  // kernels/runtime/stream.h

// A view of the key/value cache; the model owns its memory.
struct KvCache {
  void* data = nullptr;  // [pages, layers, 2 (key, value), heads, page_size, head_dim]
  // f32 on the CPU; on a GPU the dtype of the activations, or kF8 (e4m3) with bf16 or f16
  // activations. Ops round keys and values to kF8 without a scale: to nearest even, magnitudes
  // above 448 become 448, NaN stays NaN.
  DType dtype = DType::kF32;
  int64_t pages = 0, layers = 0, heads = 0, page_size = 0, head_dim = 0;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  // Whether keys, values and queries of this dtype can be used with the cache.
  bool Accepts(DType activations) const {
    return activations == dtype ||
           (dtype == DType::kF8 && (activations == DType::kBF16 || activations == DType::kF16));
  }
  int64_t page_elements() const { return layers * 2 * heads * page_size * head_dim; }
  // Offsets from `data` in elements. The key of a head in a slot and layer is head_dim numbers that
  // begin at SlotOffset(slot) + ChunkOffset(layer, false, head); its value vector begins at
  // SlotOffset(slot) + ChunkOffset(layer, true, head).
  int64_t SlotOffset(int64_t slot) const {
    return slot / page_size * page_elements() + slot % page_size * head_dim;
  }
  int64_t ChunkOffset(int64_t layer, bool value, int64_t head) const {
    return ((layer * 2 + (value ? 1 : 0)) * heads + head) * page_size * head_dim;
  }
};

// Copies the keys and values of new tokens into their slots of the key/value cache.
struct StoreKvArgs {
  Tensor k, v;  // [rows, heads, head_dim], a dtype that the cache accepts, any row stride
  const KvCache* cache = nullptr;
  int64_t layer = 0;
  // [rows], pinned host array with a device copy: destination slot of each row; -1: the row is not
  // stored.
  std::span<const int32_t> slots;
};
void StoreKv(const StoreKvArgs& args, Stream& stream);

}  // namespace quintet
