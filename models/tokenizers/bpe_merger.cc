#include "models/tokenizers/bpe_merger.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <queue>
#include <unordered_map>

#include "kernels/check.h"

namespace quintet {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kMostShort = 32;

// For words of ordinary length: scans all pairs for the lowest rank after each merge.
void MergeShort(const MergeTable& table, std::vector<int32_t>* symbols) {
  MergeTable::Merge pairs[kMostShort];  // pairs[i]: the merge of parts i and i + 1
  struct Part {
    int32_t id;
    uint32_t place;
  };
  Part parts[kMostShort];
  size_t size = symbols->size();
  for (uint32_t i = 0; i < size; ++i) parts[i] = {(*symbols)[i], i};
  const auto look_up = [&](size_t i) {
    const MergeTable::Merge* merge = nullptr;
    const int32_t left = parts[i].id, right = parts[i + 1].id;
    if (left >= 0 && right >= 0) merge = table.Find(left, right);
    pairs[i] = merge == nullptr ? MergeTable::Merge{kNone, -1} : *merge;
  };
  for (size_t i = 0; i + 1 < size; ++i) look_up(i);
  while (size > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < size; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNone) break;
    parts[best].id = pairs[best].result;
    std::copy(parts + best + 2, parts + size, parts + best + 1);
    --size;
    std::copy(pairs + best + 1, pairs + size, pairs + best);
    if (best + 1 < size) look_up(best);
    if (best > 0) look_up(best - 1);
  }
  std::fill(symbols->begin(), symbols->end(), kJoined);
  for (size_t i = 0; i < size; ++i) (*symbols)[parts[i].place] = parts[i].id;
}

// A doubly linked list stored inside the array of symbols: positions that were merged away hold the
// links. A symbol of three or more positions stores the next symbol's position right after its own
// position, and its own position in its last slot. A symbol of two positions has only the latter, a
// symbol of one position neither.
class LinkedSymbols {
 public:
  explicit LinkedSymbols(std::vector<int32_t>* symbols)
      : symbols_(symbols->data()), size_(static_cast<uint32_t>(symbols->size())) {}

  uint32_t size() const { return size_; }
  int32_t operator[](uint32_t place) const { return symbols_[place]; }
  // Position of the next symbol; size() after the last one.
  uint32_t Next(uint32_t place) const {
    const uint32_t behind = place + 1;
    if (behind == size_ || symbols_[behind] > kJoined) return behind;
    const uint32_t link = Link(symbols_[behind]);
    return link == place ? place + 2 : link;
  }
  // Position of the previous symbol; kNone before the first one.
  uint32_t Previous(uint32_t place) const {
    if (place == 0) return kNone;
    return symbols_[place - 1] > kJoined ? place - 1 : Link(symbols_[place - 1]);
  }
  // Merges the symbol at `place` with the symbol at `gone`, which must be the next one.
  void Join(uint32_t place, uint32_t gone, int32_t result) {
    const uint32_t next = Next(gone);
    symbols_[place] = result;
    symbols_[gone] = kJoined;
    if (next - place > 2) symbols_[place + 1] = Linked(next);
    symbols_[next - 1] = Linked(place);
  }

 private:
  static uint32_t Link(int32_t symbol) { return static_cast<uint32_t>(kJoined - symbol); }
  static int32_t Linked(uint32_t place) { return kJoined - static_cast<int32_t>(place); }

  int32_t* symbols_;
  uint32_t size_;
};

// Queues of positions, stored in blocks from one shared free list.
class PlaceLists {
  struct Block;

 public:
  struct List {
    Block *first = nullptr, *last = nullptr;
    uint32_t begin = 0, end = 0;  // indices into the first and the last block
  };
  static bool Empty(const List& list) { return list.first == nullptr; }
  static uint32_t Front(const List& list) { return list.first->places[list.begin]; }
  static uint32_t Back(const List& list) { return list.last->places[list.end - 1]; }
  void PushBack(uint32_t place, List* list) {
    if (list->last == nullptr || list->end == kPlaces) AddBlock(list);
    list->last->places[list->end++] = place;
  }
  void PopFront(List* list) {
    ++list->begin;
    if (list->begin < (list->first == list->last ? list->end : kPlaces)) return;
    Block* const block = list->first;
    list->first = block->next;
    list->begin = 0;
    if (list->first == nullptr) *list = List();
    block->next = free_;
    free_ = block;
  }

 private:
  static constexpr uint32_t kPlaces = 14;  // one cache line with the pointer
  struct Block {
    uint32_t places[kPlaces];
    Block* next;
  };

  void AddBlock(List* list) {
    Block* block = free_;
    if (block == nullptr) {
      block = &blocks_.emplace_back();
    } else {
      free_ = block->next;
    }
    block->next = nullptr;
    (list->last == nullptr ? list->first : list->last->next) = block;
    list->last = block;
    list->end = 0;
  }

  std::deque<Block> blocks_;  // a deque never moves its elements
  Block* free_ = nullptr;
};

// For long words. One queue of pairs per rank. Most pairs are found in ascending order of position,
// so a queue is a plain list plus a heap for the few that are found out of order.
class LongMerger {
 public:
  LongMerger(const MergeTable& table, std::vector<int32_t>* symbols)
      : table_(table), symbols_(symbols) {}

  void Run() {
    for (uint32_t place = 0; place < symbols_.size(); ++place) LookUp(place, place + 1);
    while (!ranks_.empty()) {
      const uint32_t rank = ranks_.top().first;
      Queue& queue = queues_[ranks_.top().second];
      if (PlaceLists::Empty(queue.ordered) && queue.late.empty()) {
        queue.active = false;
        ranks_.pop();
      } else {
        Merge(Pop(&queue), rank);
      }
    }
  }

 private:
  using LatePlaces = std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<uint32_t>>;
  struct Queue {
    PlaceLists::List ordered;
    LatePlaces late;
    bool active = false;
  };

  // A pair's cached table entry and the index of its rank's queue.
  struct Recent {
    int32_t left = kUnmerged, right = kUnmerged;
    MergeTable::Merge merge = {kNone, -1};
    uint32_t queue = 0;
  };

  // Long words repeat few pairs, so this cache avoids most lookups in the table.
  const Recent& Find(int32_t left, int32_t right) {
    Recent& recent =
        recent_[(static_cast<uint32_t>(left) * 31 + static_cast<uint32_t>(right)) % kRecent];
    if (recent.left != left || recent.right != right) Search(left, right, &recent);
    return recent;
  }

  void Search(int32_t left, int32_t right, Recent* recent) {
    const MergeTable::Merge* merge = table_.Find(left, right);
    *recent = {left, right, merge == nullptr ? MergeTable::Merge{kNone, -1} : *merge, 0};
    if (merge == nullptr) return;
    const auto [it, fresh] =
        queue_of_rank_.try_emplace(merge->rank, static_cast<uint32_t>(queues_.size()));
    if (fresh) queues_.emplace_back();
    recent->queue = it->second;
  }

  void Push(uint32_t place, Queue* queue) {
    if (PlaceLists::Empty(queue->ordered) || place >= PlaceLists::Back(queue->ordered)) {
      lists_.PushBack(place, &queue->ordered);
    } else {
      queue->late.push(place);
    }
  }

  uint32_t Pop(Queue* queue) {
    if (queue->late.empty() || (!PlaceLists::Empty(queue->ordered) &&
                                PlaceLists::Front(queue->ordered) <= queue->late.top())) {
      const uint32_t place = PlaceLists::Front(queue->ordered);
      lists_.PopFront(&queue->ordered);
      return place;
    }
    const uint32_t place = queue->late.top();
    queue->late.pop();
    return place;
  }

  // Looks up the merge of the symbols at `place` and `next` and queues it.
  void LookUp(uint32_t place, uint32_t next) {
    if (next == symbols_.size() || symbols_[place] < 0 || symbols_[next] < 0) return;
    const Recent& found = Find(symbols_[place], symbols_[next]);
    if (found.merge.rank == kNone) return;
    Queue& queue = queues_[found.queue];
    Push(place, &queue);
    if (!queue.active) {
      queue.active = true;
      ranks_.push({found.merge.rank, found.queue});
    }
  }

  // Merges the symbol at `place` with its next one, unless an earlier merge has changed the pair
  // since it was queued.
  void Merge(uint32_t place, uint32_t rank) {
    if (symbols_[place] < 0) return;
    const uint32_t next = symbols_.Next(place);
    if (next == symbols_.size() || symbols_[next] < 0) return;
    const MergeTable::Merge merge = Find(symbols_[place], symbols_[next]).merge;
    if (merge.rank != rank) return;
    symbols_.Join(place, next, merge.result);
    if (const uint32_t previous = symbols_.Previous(place); previous != kNone)
      LookUp(previous, place);
    LookUp(place, symbols_.Next(place));
  }

  using RankQueue = std::pair<uint32_t, uint32_t>;  // rank, index in queues_
  const MergeTable& table_;
  LinkedSymbols symbols_;
  PlaceLists lists_;
  std::vector<Queue> queues_;
  std::unordered_map<uint32_t, uint32_t> queue_of_rank_;
  static constexpr size_t kRecent = 256;
  Recent recent_[kRecent];
  std::priority_queue<RankQueue, std::vector<RankQueue>, std::greater<RankQueue>> ranks_;
};

}  // namespace

void MergeSymbols(const MergeTable& table, std::vector<int32_t>* symbols) {
  if (symbols->size() < 2) return;
  if (symbols->size() <= kMostShort) {
    MergeShort(table, symbols);
  } else {
    QT_CHECK(symbols->size() < INT32_MAX);
    LongMerger(table, symbols).Run();
  }
}

}  // namespace quintet
