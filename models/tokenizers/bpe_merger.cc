#include "models/tokenizers/bpe_merger.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <queue>
#include <unordered_map>

#include "kernels/base/check.h"

namespace quintet {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kMaxShort = 32;

// MergeSymbols for words of at most kMaxShort symbols: scans all pairs for the lowest rank after
// each merge.
void MergeShort(const MergeTable& table, std::vector<int32_t>* symbols) {
  MergeTable::Merge pairs[kMaxShort];  // pairs[i]: the merge of parts i and i + 1
  struct Part {
    int32_t id;
    uint32_t position;
  };
  Part parts[kMaxShort];
  size_t size = symbols->size();
  for (uint32_t i = 0; i < size; ++i) parts[i] = {(*symbols)[i], i};
  const auto find_merge = [&](size_t i) {
    const MergeTable::Merge* merge = nullptr;
    const int32_t left = parts[i].id, right = parts[i + 1].id;
    if (left >= 0 && right >= 0) merge = table.Find(left, right);
    pairs[i] = merge == nullptr ? MergeTable::Merge{kNone, -1} : *merge;
  };
  for (size_t i = 0; i + 1 < size; ++i) find_merge(i);
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
    if (best + 1 < size) find_merge(best);
    if (best > 0) find_merge(best - 1);
  }
  std::fill(symbols->begin(), symbols->end(), kJoined);
  for (size_t i = 0; i < size; ++i) (*symbols)[parts[i].position] = parts[i].id;
}

// A doubly linked list of symbols, stored inside the array of symbols itself: positions that were
// merged away hold the links. If a merged symbol covers positions [p, e), element e - 1 links back
// to p, for Previous(e). If it covers three or more positions, element p + 1 links forward to e,
// for Next(p). A link to a position is stored as kJoined - position.
class LinkedSymbols {
 public:
  explicit LinkedSymbols(std::vector<int32_t>* symbols)
      : symbols_(symbols->data()), size_(static_cast<uint32_t>(symbols->size())) {}

  uint32_t size() const { return size_; }
  int32_t operator[](uint32_t position) const { return symbols_[position]; }
  // Position of the next symbol; size() after the last one.
  uint32_t Next(uint32_t position) const {
    const uint32_t behind = position + 1;
    if (behind == size_ || symbols_[behind] > kJoined) return behind;
    const uint32_t link = DecodeLink(symbols_[behind]);
    return link == position ? position + 2 : link;
  }
  // Position of the previous symbol; kNone before the first one.
  uint32_t Previous(uint32_t position) const {
    if (position == 0) return kNone;
    return symbols_[position - 1] > kJoined ? position - 1 : DecodeLink(symbols_[position - 1]);
  }
  // Merges the symbol at `position` with the symbol at `absorbed`, which must be the next one.
  void Join(uint32_t position, uint32_t absorbed, int32_t result) {
    const uint32_t next = Next(absorbed);
    symbols_[position] = result;
    symbols_[absorbed] = kJoined;
    if (next - position > 2) symbols_[position + 1] = EncodeLink(next);
    symbols_[next - 1] = EncodeLink(position);
  }

 private:
  static uint32_t DecodeLink(int32_t symbol) { return static_cast<uint32_t>(kJoined - symbol); }
  static int32_t EncodeLink(uint32_t position) { return kJoined - static_cast<int32_t>(position); }

  int32_t* symbols_;
  uint32_t size_;
};

// FIFO queues of positions (indices of symbols in the array of symbols). A queue is a list of
// blocks; unused blocks are in one free list, from which all queues take theirs.
class PositionQueues {
  struct Block;

 public:
  struct List {
    Block *first = nullptr, *last = nullptr;
    uint32_t begin = 0, end = 0;  // indices in the first and in the last block
  };
  static bool Empty(const List& list) { return list.first == nullptr; }
  static uint32_t Front(const List& list) { return list.first->positions[list.begin]; }
  static uint32_t Back(const List& list) { return list.last->positions[list.end - 1]; }
  void PushBack(uint32_t position, List* list) {
    if (list->last == nullptr || list->end == kBlockPositions) AddBlock(list);
    list->last->positions[list->end++] = position;
  }
  void PopFront(List* list) {
    ++list->begin;
    if (list->begin < (list->first == list->last ? list->end : kBlockPositions)) return;
    Block* const block = list->first;
    list->first = block->next;
    list->begin = 0;
    if (list->first == nullptr) *list = List();
    block->next = free_;
    free_ = block;
  }

 private:
  static constexpr uint32_t kBlockPositions = 14;  // one cache line, including `next`
  struct Block {
    uint32_t positions[kBlockPositions];
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

// MergeSymbols for long words. Pairs that can be merged are queued by rank, each queue ordered by
// position. Most pairs are found in ascending order of position, so a queue is a plain list plus a
// heap for the few that are found out of order.
class LongMerger {
 public:
  LongMerger(const MergeTable& table, std::vector<int32_t>* symbols)
      : table_(table), symbols_(symbols) {}

  void Run() {
    for (uint32_t position = 0; position < symbols_.size(); ++position)
      QueueMerge(position, position + 1);
    while (!ranks_.empty()) {
      const uint32_t rank = ranks_.top().first;
      Queue& queue = queues_[ranks_.top().second];
      if (PositionQueues::Empty(queue.ordered) && queue.out_of_order.empty()) {
        queue.active = false;
        ranks_.pop();
      } else {
        Merge(Pop(&queue), rank);
      }
    }
  }

 private:
  using PositionHeap = std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<uint32_t>>;
  struct Queue {
    PositionQueues::List ordered;
    PositionHeap out_of_order;
    bool active = false;
  };

  // A pair of symbols, its entry in the MergeTable, and the index in queues_ of its rank's queue.
  struct CachedPair {
    int32_t left = kUnmerged, right = kUnmerged;
    MergeTable::Merge merge = {kNone, -1};
    uint32_t queue = 0;
  };

  // Looks up a pair in pair_cache_ and, if it is not there, in the MergeTable. Long words repeat
  // few pairs, so the cache avoids most lookups in the table.
  const CachedPair& Find(int32_t left, int32_t right) {
    CachedPair& cached =
        pair_cache_[(static_cast<uint32_t>(left) * 31 + static_cast<uint32_t>(right)) %
                    kCachedPairs];
    if (cached.left != left || cached.right != right) FillCache(left, right, &cached);
    return cached;
  }

  void FillCache(int32_t left, int32_t right, CachedPair* cached) {
    const MergeTable::Merge* merge = table_.Find(left, right);
    *cached = {left, right, merge == nullptr ? MergeTable::Merge{kNone, -1} : *merge, 0};
    if (merge == nullptr) return;
    const auto [it, fresh] =
        queue_of_rank_.try_emplace(merge->rank, static_cast<uint32_t>(queues_.size()));
    if (fresh) queues_.emplace_back();
    cached->queue = it->second;
  }

  void Push(uint32_t position, Queue* queue) {
    if (PositionQueues::Empty(queue->ordered) || position >= PositionQueues::Back(queue->ordered)) {
      lists_.PushBack(position, &queue->ordered);
    } else {
      queue->out_of_order.push(position);
    }
  }

  uint32_t Pop(Queue* queue) {
    if (queue->out_of_order.empty() ||
        (!PositionQueues::Empty(queue->ordered) &&
         PositionQueues::Front(queue->ordered) <= queue->out_of_order.top())) {
      const uint32_t position = PositionQueues::Front(queue->ordered);
      lists_.PopFront(&queue->ordered);
      return position;
    }
    const uint32_t position = queue->out_of_order.top();
    queue->out_of_order.pop();
    return position;
  }

  // Queues the pair of adjacent symbols at `position` and `next`, if the table has a merge for it.
  void QueueMerge(uint32_t position, uint32_t next) {
    if (next == symbols_.size() || symbols_[position] < 0 || symbols_[next] < 0) return;
    const CachedPair& found = Find(symbols_[position], symbols_[next]);
    if (found.merge.rank == kNone) return;
    Queue& queue = queues_[found.queue];
    Push(position, &queue);
    if (!queue.active) {
      queue.active = true;
      ranks_.push({found.merge.rank, found.queue});
    }
  }

  // Merges the symbol at `position` with the symbol after it. Does nothing if these two symbols are
  // no longer a pair of rank `rank`, because another merge has changed one of them since the pair
  // was queued.
  void Merge(uint32_t position, uint32_t rank) {
    if (symbols_[position] < 0) return;
    const uint32_t next = symbols_.Next(position);
    if (next == symbols_.size() || symbols_[next] < 0) return;
    const MergeTable::Merge merge = Find(symbols_[position], symbols_[next]).merge;
    if (merge.rank != rank) return;
    symbols_.Join(position, next, merge.result);
    if (const uint32_t previous = symbols_.Previous(position); previous != kNone)
      QueueMerge(previous, position);
    QueueMerge(position, symbols_.Next(position));
  }

  using RankQueue = std::pair<uint32_t, uint32_t>;  // rank, index in queues_
  const MergeTable& table_;
  LinkedSymbols symbols_;
  PositionQueues lists_;
  std::vector<Queue> queues_;
  std::unordered_map<uint32_t, uint32_t> queue_of_rank_;
  static constexpr size_t kCachedPairs = 256;
  CachedPair pair_cache_[kCachedPairs];
  std::priority_queue<RankQueue, std::vector<RankQueue>, std::greater<RankQueue>> ranks_;
};

}  // namespace

void MergeSymbols(const MergeTable& table, std::vector<int32_t>* symbols) {
  if (symbols->size() < 2) return;
  if (symbols->size() <= kMaxShort) {
    MergeShort(table, symbols);
  } else {
    QT_CHECK(symbols->size() < INT32_MAX);
    LongMerger(table, symbols).Run();
  }
}

}  // namespace quintet
