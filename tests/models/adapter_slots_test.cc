#include "models/adapter_slots.h"

#include <algorithm>
#include <list>
#include <map>
#include <random>

#include "models/adapter_layout.h"
#include "tests/catch.h"

namespace quintet {
namespace {

// AdapterSlots, and adapters without factors. held[slot] is the id of the adapter that was last
// loaded into the slot.
struct SlotsOfNothing {
  SlotsOfNothing(int64_t slot_count, size_t adapter_count)
      : held(static_cast<size_t>(slot_count)),
        slots(slot_count, layout.get(), [this](int32_t slot, const AdapterHandle& adapter) {
          held[static_cast<size_t>(slot)] = adapter->id;
        }) {
    for (size_t i = 0; i < adapter_count; ++i) {
      const auto adapter = std::make_shared<PackedAdapter>();
      adapter->layout = layout;
      adapters.push_back(adapter);
    }
  }

  std::shared_ptr<const AdapterLayout> layout = std::make_shared<const AdapterLayout>();
  std::vector<AdapterHandle> adapters;
  std::vector<uint64_t> held;
  AdapterSlots slots;
};

TEST_CASE("An adapter stays in its slot until another one needs it", "[adapters]") {
  SlotsOfNothing test(2, 3);
  AdapterSlots& slots = test.slots;
  const int32_t first = slots.Take(test.adapters[0]), second = slots.Take(test.adapters[1]);
  CHECK((first >= 0 && second >= 0 && first != second));
  CHECK(slots.fills() == 2);
  CHECK(slots.Take(test.adapters[0]) == first);  // a second user
  CHECK_FALSE(slots.CanTake(*test.adapters[2]));
  CHECK(slots.Take(test.adapters[2]) == -1);
  slots.Return(first);
  CHECK(slots.Take(test.adapters[2]) == -1);  // the first user is still there
  slots.Return(first);
  slots.Return(second);
  CHECK(slots.Take(test.adapters[1]) == second);  // it was not replaced
  CHECK(slots.fills() == 2);
  slots.Return(second);
  CHECK(slots.CanTake(*test.adapters[2]));
  CHECK(slots.Take(test.adapters[2]) == first);  // unused for the longest time
  CHECK(slots.fills() == 3);
}

TEST_CASE("A slot keeps its adapter alive", "[adapters]") {
  SlotsOfNothing test(1, 2);
  const std::weak_ptr<const PackedAdapter> adapter = test.adapters[0];
  test.slots.Return(test.slots.Take(test.adapters[0]));
  test.adapters[0].reset();
  CHECK_FALSE(adapter.expired());
  test.slots.Return(test.slots.Take(test.adapters[1]));
  CHECK(adapter.expired());
}

TEST_CASE("Adapters that nobody else refers to are replaced first", "[adapters]") {
  SlotsOfNothing test(4, 4);
  for (const size_t i : {0, 1}) test.slots.Return(test.slots.Take(test.adapters[i]));
  const std::weak_ptr<const PackedAdapter> removed = test.adapters[1];
  test.adapters[1].reset();
  test.slots.Return(test.slots.Take(test.adapters[2]));  // not in one of the two empty slots
  CHECK(removed.expired());
  CHECK(std::count(test.held.begin(), test.held.end(), uint64_t{0}) == 2);
}

TEST_CASE("Slots accept the adapters of their model only", "[adapters]") {
  const SlotsOfNothing one(1, 1), other(1, 1);
  CHECK(one.slots.Accepts(*one.adapters[0]));
  CHECK_FALSE(one.slots.Accepts(*other.adapters[0]));
}

TEST_CASE("Random users find their adapters in the slots", "[adapters]") {
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    SlotsOfNothing test(1 + random() % 6, 1 + random() % 12);
    std::map<size_t, std::pair<int32_t, int>> used;  // slot and users by adapter
    std::list<size_t> unused;                        // in slots, the longest unused first
    for (int turn = 0; turn < 400; ++turn) {
      const size_t index = random() % test.adapters.size();
      const AdapterHandle& adapter = test.adapters[index];
      if (random() % 2 == 0 && used.count(index) > 0) {
        test.slots.Return(used[index].first);
        if (--used[index].second > 0) continue;
        used.erase(index);
        unused.push_back(index);
        continue;
      }
      const bool held = std::count(test.held.begin(), test.held.end(), adapter->id) > 0;
      const bool room = held || used.size() < test.held.size();
      REQUIRE(test.slots.CanTake(*adapter) == room);
      const int32_t slot = test.slots.Take(adapter);
      REQUIRE((slot >= 0) == room);
      if (!room) continue;
      REQUIRE(test.held[static_cast<size_t>(slot)] == adapter->id);
      if (!held && used.size() + unused.size() == test.held.size()) {
        const AdapterHandle& replaced = test.adapters[unused.front()];
        CHECK(std::count(test.held.begin(), test.held.end(), replaced->id) == 0);
        unused.pop_front();
      }
      unused.remove(index);
      used[index].first = slot;
      ++used[index].second;
    }
    for (const auto& [index, slot] : used) {
      CHECK(test.held[static_cast<size_t>(slot.first)] == test.adapters[index]->id);
    }
  }
}

}  // namespace
}  // namespace quintet
