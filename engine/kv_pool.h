// Allocates KV cache pages by number; it does not touch their memory. All pages of a request are
// reserved at admission; hence a running request never runs out of pages. Not thread safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quintet {

class KvPool {
 public:
  KvPool(int64_t pages, int64_t page_size);

  int64_t total_pages() const { return static_cast<int64_t>(owned_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t used_pages() const { return total_pages() - free_pages(); }
  int64_t page_size() const { return page_size_; }
  int64_t PagesFor(int64_t tokens) const { return (tokens + page_size_ - 1) / page_size_; }

  // Appends `pages` free pages to `out`, most recently freed first, because those are most likely
  // in CPU caches. If fewer are free, returns false and takes none.
  bool Reserve(int64_t pages, std::vector<int32_t>* out);
  // Frees all pages in `pages` and empties that list.
  void Release(std::vector<int32_t>* pages);

 private:
  int64_t page_size_;
  std::vector<int32_t> free_;   // last in, first out
  std::vector<uint8_t> owned_;  // [pages] 1 while reserved; aborts on a double free
};

// Assigns cache slots to the sequences of one request. All sequences share the slots of positions
// [0, shared) (the prompt). For the next `own` positions each sequence has its own slots. The own
// slots of sequence 0 continue on the last page of the shared part; the own slots of every other
// sequence begin on a new page.
class SlotLayout {
 public:
  SlotLayout() = default;
  SlotLayout(int64_t shared, int64_t own, int64_t sequences, int64_t page_size)
      : shared_(shared), own_(own), sequences_(sequences), page_size_(page_size) {}

  int64_t PagesNeeded() const;
  // `pages` must have PagesNeeded() page numbers, and must outlive this object.
  void Assign(std::span<const int32_t> pages);
  // Sets slots[p] to the cache slot of position p of sequence `seq`, for every index p of `slots`.
  // `slots` may be shorter than the layout, but not longer: its size is at most shared + own, the
  // number of positions that the constructor was given for each sequence.
  void FillSlots(int64_t seq, std::span<int32_t> slots) const;

 private:
  int64_t shared_ = 0, own_ = 0, sequences_ = 0, page_size_ = 1;
  std::span<const int32_t> pages_;
};

// Returns the cache slots of positions [0, tokens) of a sequence that fills `pages` one after
// another.
std::vector<int32_t> ConsecutiveSlots(std::span<const int32_t> pages, int64_t tokens,
                                      int64_t page_size);

}  // namespace quintet
