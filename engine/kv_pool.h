// Who owns which page of the key/value cache: integers only. Pages are reserved whole when a
// request is admitted, so nothing runs out in the middle. Not thread safe.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace quintet {

class KvPool {
 public:
  KvPool(int64_t pages, int64_t page_size);

  int64_t total_pages() const { return static_cast<int64_t>(owned_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t used_pages() const { return total_pages() - free_pages(); }
  int64_t page_size() const { return page_size_; }
  int64_t PagesFor(int64_t tokens) const { return (tokens + page_size_ - 1) / page_size_; }

  // Appends `pages` free pages to `out`; false, with nothing taken, when there are fewer. The most
  // recently freed come first: they are the ones still in the processor's caches.
  bool Reserve(int64_t pages, std::vector<int32_t>* out);
  // Gives all of `pages` back and clears it.
  void Release(std::vector<int32_t>* pages);

 private:
  int64_t page_size_;
  std::vector<int32_t> free_;   // last in, first out
  std::vector<uint8_t> owned_;  // [pages] 1 while reserved: a page freed twice is our own bug
};

// Where the sequences of one request keep their keys and values. Positions [0, shared) are common
// to all sequences (a prompt); from there on each seq has `own` positions to itself. History 0
// continues in the pages of the shared part.
class SlotLayout {
 public:
  SlotLayout() = default;
  SlotLayout(int64_t shared, int64_t own, int64_t sequences, int64_t page_size)
      : shared_(shared), own_(own), sequences_(sequences), page_size_(page_size) {}

  int64_t PagesNeeded() const;
  // `pages`: PagesNeeded() of them; they outlive the layout.
  void Assign(absl::Span<const int32_t> pages);
  // Slot of `position` as written by `seq`; position < shared + own.
  int32_t Slot(int64_t seq, int64_t position) const;

 private:
  int64_t shared_ = 0, own_ = 0, sequences_ = 0, page_size_ = 1;
  absl::Span<const int32_t> pages_;
};

// Slots of positions [0, tokens) laid one after the other over `pages`.
std::vector<int32_t> ConsecutiveSlots(absl::Span<const int32_t> pages, int64_t tokens,
                                      int64_t page_size);

}  // namespace quintet
