#include "models/tokenizers/bpe_merger.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace quintet {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// For words of ordinary length: rescans all pairs after each merge.
void MergeShort(const MergeTable& table, size_t stop_at, std::vector<BpeSymbol>* symbols) {
  constexpr size_t kMost = 32;
  MergeTable::Merge pairs[kMost];  // of symbols i and i + 1
  const auto look_up = [&](size_t i) {
    const MergeTable::Merge* merge = nullptr;
    const int32_t left = (*symbols)[i].id, right = (*symbols)[i + 1].id;
    if (left >= 0 && right >= 0) merge = table.Find(left, right);
    pairs[i] = merge == nullptr ? MergeTable::Merge{kNone, -1} : *merge;
  };
  for (size_t i = 0; i + 1 < symbols->size(); ++i) look_up(i);
  while (symbols->size() > std::max<size_t>(stop_at, 1)) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < symbols->size(); ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNone) return;
    (*symbols)[best].id = pairs[best].result;
    (*symbols)[best].end = (*symbols)[best + 1].end;
    symbols->erase(symbols->begin() + static_cast<ptrdiff_t>(best) + 1);
    std::copy(pairs + best + 1, pairs + symbols->size(), pairs + best);
    if (best + 1 < symbols->size()) look_up(best);
    if (best > 0) look_up(best - 1);
  }
}

// For long words. Pairs wait in one queue per rank. Most are found in ascending order of place, so
// a queue is a plain list and a heap for the few that come late.
class LongMerger {
 public:
  LongMerger(const MergeTable& table, size_t stop_at, std::vector<BpeSymbol>* symbols)
      : table_(table),
        symbols_(*symbols),
        left_to_merge_(symbols->size() - stop_at),
        next_(symbols->size()),
        previous_(symbols->size()),
        pair_ranks_(symbols->size(), kNone) {}

  void Run() {
    const uint32_t size = static_cast<uint32_t>(symbols_.size());
    for (uint32_t i = 0; i < size; ++i) {
      next_[i] = i + 1 < size ? i + 1 : kNone;
      previous_[i] = i > 0 ? i - 1 : kNone;
    }
    for (uint32_t i = 0; i + 1 < size; ++i) LookUp(i);
    while (!ranks_.empty() && left_to_merge_ > 0) {
      const uint32_t rank = ranks_.top().first;
      Queue& queue = queues_[ranks_.top().second];
      if (queue.Empty()) {
        queue.active = false;
        ranks_.pop();
        continue;
      }
      const uint32_t place = queue.Pop();
      if (pair_ranks_[place] == rank) Merge(place);
    }
    size_t kept = 0;
    for (uint32_t i = 0; i != kNone; i = next_[i]) symbols_[kept++] = symbols_[i];
    symbols_.resize(kept);
  }

 private:
  struct Queue {
    std::vector<uint32_t> ordered;
    size_t head = 0;
    std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<uint32_t>> late;
    bool active = false;

    bool Empty() const { return head == ordered.size() && late.empty(); }
    void Push(uint32_t place) {
      if (head == ordered.size()) {
        ordered.clear();
        head = 0;
      }
      if (ordered.empty() || place >= ordered.back()) {
        ordered.push_back(place);
      } else {
        late.push(place);
      }
    }
    uint32_t Pop() {
      if (late.empty() || (head < ordered.size() && ordered[head] <= late.top()))
        return ordered[head++];
      const uint32_t place = late.top();
      late.pop();
      return place;
    }
  };

  // What the table says of a pair, and the queue of its rank.
  struct Recent {
    int32_t left = -1, right = -1;
    MergeTable::Merge merge = {kNone, -1};
    uint32_t queue = 0;
  };

  // Long words repeat few pairs: the last ones seen spare most searches of the table.
  const Recent& Find(int32_t left, int32_t right) {
    Recent& recent =
        recent_[(static_cast<uint32_t>(left) * 31 + static_cast<uint32_t>(right)) % kRecent];
    if (recent.left == left && recent.right == right) return recent;
    const MergeTable::Merge* merge = table_.Find(left, right);
    recent = {left, right, merge == nullptr ? MergeTable::Merge{kNone, -1} : *merge, 0};
    if (merge != nullptr) {
      const auto [it, fresh] =
          queue_of_rank_.try_emplace(merge->rank, static_cast<uint32_t>(queues_.size()));
      if (fresh) queues_.emplace_back();
      recent.queue = it->second;
    }
    return recent;
  }

  // Finds the merge of the symbol at `place` with the next one and queues it.
  void LookUp(uint32_t place) {
    pair_ranks_[place] = kNone;
    const uint32_t next = next_[place];
    if (next == kNone || symbols_[place].id < 0 || symbols_[next].id < 0) return;
    const Recent& found = Find(symbols_[place].id, symbols_[next].id);
    if (found.merge.rank == kNone) return;
    pair_ranks_[place] = found.merge.rank;
    Queue& queue = queues_[found.queue];
    queue.Push(place);
    if (!queue.active) {
      queue.active = true;
      ranks_.push({found.merge.rank, found.queue});
    }
  }

  void Merge(uint32_t place) {
    --left_to_merge_;
    const uint32_t gone = next_[place];
    symbols_[place].id = Find(symbols_[place].id, symbols_[gone].id).merge.result;
    symbols_[place].end = symbols_[gone].end;
    next_[place] = next_[gone];
    if (next_[gone] != kNone) previous_[next_[gone]] = place;
    pair_ranks_[gone] = kNone;
    if (previous_[place] != kNone) LookUp(previous_[place]);
    LookUp(place);
  }

  using RankQueue = std::pair<uint32_t, uint32_t>;  // rank, index in queues_
  const MergeTable& table_;
  std::vector<BpeSymbol>& symbols_;
  size_t left_to_merge_;
  std::vector<uint32_t> next_, previous_;
  std::vector<uint32_t> pair_ranks_;  // of each symbol with the next
  std::vector<Queue> queues_;
  absl::flat_hash_map<uint32_t, uint32_t> queue_of_rank_;
  static constexpr size_t kRecent = 256;
  Recent recent_[kRecent];
  std::priority_queue<RankQueue, std::vector<RankQueue>, std::greater<RankQueue>> ranks_;
};

}  // namespace

void MergeSymbols(const MergeTable& table, std::vector<BpeSymbol>* symbols, size_t stop_at) {
  if (symbols->size() < 2 || symbols->size() <= stop_at) return;
  if (symbols->size() <= 32) {
    MergeShort(table, stop_at, symbols);
  } else {
    LongMerger(table, stop_at, symbols).Run();
  }
}

}  // namespace quintet
