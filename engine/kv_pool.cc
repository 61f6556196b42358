#include "engine/kv_pool.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "kernels/base/check.h"

namespace quintet {

KvPool::KvPool(int64_t pages, int64_t page_size)
    : page_size_(page_size), owned_(static_cast<size_t>(pages), 0) {
  QT_CHECK_GE(pages, 0);
  QT_CHECK_GE(page_size, 1);
  free_.reserve(static_cast<size_t>(pages));
  for (int64_t page = pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

bool KvPool::Reserve(int64_t pages, std::vector<int32_t>* out) {
  QT_CHECK_GE(pages, 0);
  if (pages > free_pages()) return false;
  out->reserve(out->size() + static_cast<size_t>(pages));  // may throw, so before any page is taken
  for (int64_t i = 0; i < pages; ++i) {
    const int32_t page = free_.back();
    free_.pop_back();
    owned_[page] = 1;
    out->push_back(page);
  }
  return true;
}

void KvPool::Release(std::vector<int32_t>* pages) {
  for (auto page = pages->rbegin(); page != pages->rend(); ++page) {
    QT_CHECK(*page >= 0 && *page < total_pages() && owned_[*page] == 1);
    owned_[*page] = 0;
    free_.push_back(*page);
  }
  pages->clear();
}

int64_t SlotLayout::PagesNeeded() const {
  const int64_t first = (shared_ + own_ + page_size_ - 1) / page_size_;
  return first + (sequences_ - 1) * ((own_ + page_size_ - 1) / page_size_);
}

void SlotLayout::Assign(std::span<const int32_t> pages) {
  QT_CHECK_EQ(static_cast<int64_t>(pages.size()), PagesNeeded());
  pages_ = pages;
}

void SlotLayout::FillSlots(int64_t seq, std::span<int32_t> slots) const {
  const auto count = static_cast<int64_t>(slots.size());
  QT_CHECK(seq >= 0 && seq < sequences_ && count <= shared_ + own_);
  // Sets slots[begin, end) to the cache slots of page pages_[page], then to those of page
  // pages_[page + 1], and so on.
  const auto fill = [&](int64_t begin, int64_t end, int64_t page) {
    for (int64_t position = begin; position < end; ++page) {
      const int64_t in_page = std::min(page_size_, end - position);
      const auto first = static_cast<int32_t>(pages_[page] * page_size_);
      std::iota(slots.data() + position, slots.data() + position + in_page, first);
      position += in_page;
    }
  };
  if (seq == 0) return fill(0, count, 0);
  const int64_t shared = std::min(shared_, count);
  fill(0, shared, 0);
  const int64_t first = (shared_ + own_ + page_size_ - 1) / page_size_;
  const int64_t each = (own_ + page_size_ - 1) / page_size_;
  fill(shared, count, first + (seq - 1) * each);
}

std::vector<int32_t> ConsecutiveSlots(std::span<const int32_t> pages, int64_t tokens,
                                      int64_t page_size) {
  std::vector<int32_t> slots(static_cast<size_t>(tokens));
  for (int64_t i = 0; i < tokens; ++i) {
    slots[i] = static_cast<int32_t>(pages[i / page_size] * page_size + i % page_size);
  }
  return slots;
}

}  // namespace quintet
