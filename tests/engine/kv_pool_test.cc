#include "engine/kv_pool.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <span>

#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("kv pool: random reservations never share, lose or invent a page") {
  std::mt19937 random(1);
  KvPool pool(37, 8);
  std::map<int, std::vector<int32_t>> held;
  for (int step = 0; step < 20000; ++step) {
    const int key = random() % 12;
    if (random() % 2 == 0) {
      const int64_t wanted = random() % 9, before = pool.free_pages();
      std::vector<int32_t>& pages = held[key];
      const size_t had = pages.size();
      const bool got = pool.Reserve(wanted, &pages);
      REQUIRE(got == (wanted <= before));
      REQUIRE(pages.size() == had + (got ? wanted : 0));
      REQUIRE(pool.free_pages() == before - (got ? wanted : 0));
    } else {
      pool.Release(&held[key]);
      REQUIRE(held[key].empty());
    }
    std::set<int32_t> all;
    size_t count = 0;
    for (const auto& [owner, pages] : held) {
      all.insert(pages.begin(), pages.end());
      count += pages.size();
    }
    REQUIRE(all.size() == count);
    REQUIRE(pool.used_pages() == static_cast<int64_t>(count));
    if (!all.empty()) REQUIRE((*all.begin() >= 0 && *all.rbegin() < 37));
  }
  for (auto& [owner, pages] : held) pool.Release(&pages);
  CHECK(pool.free_pages() == 37);
}

TEST_CASE(
    "slot layout: sequences share the prompt's slots and nothing else, within the pages given") {
  for (int64_t page_size : {1, 3, 4, 16}) {
    for (int64_t shared : {0, 1, 3, 4, 17}) {
      for (int64_t own : {0, 1, 4, 9}) {
        for (int64_t sequences : {1, 2, 5}) {
          if (shared + own == 0) continue;
          SlotLayout layout(shared, own, sequences, page_size);
          std::vector<int32_t> pages(layout.PagesNeeded());
          for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(7 * i + 2);
          layout.Assign(pages);
          std::set<int32_t> slots;
          std::vector<int32_t> first_slots;
          for (int64_t seq = 0; seq < sequences; ++seq) {
            std::vector<int32_t> own_slots(shared + own), some(own_slots.size() / 2);
            layout.FillSlots(seq, std::span(own_slots));
            layout.FillSlots(seq, std::span(some));
            REQUIRE(std::equal(some.begin(), some.end(), own_slots.begin()));
            if (seq == 0) first_slots = own_slots;
            for (int64_t p = 0; p < shared + own; ++p) {
              const int32_t slot = own_slots[p];
              const int32_t page = slot / static_cast<int32_t>(page_size);
              REQUIRE(std::count(pages.begin(), pages.end(), page) == 1);
              if (p < shared) {
                REQUIRE(slot == first_slots[p]);
                if (seq > 0) continue;
              }
              REQUIRE(slots.insert(slot).second);
            }
          }
          REQUIRE(slots.size() == static_cast<size_t>(shared + sequences * own));
          // The allocated pages together have fewer than `sequences` * page_size unused slots.
          REQUIRE(layout.PagesNeeded() * page_size <
                  shared + sequences * own + sequences * page_size);
        }
      }
    }
  }
}

TEST_CASE("consecutive slots fill the pages in order") {
  const std::vector<int32_t> pages{5, 2, 9};
  CHECK(ConsecutiveSlots(pages, 7, 3) == std::vector<int32_t>{15, 16, 17, 6, 7, 8, 27});
}

}  // namespace
}  // namespace quintet
