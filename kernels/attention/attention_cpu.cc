// CPU attention: dispatch and partition into tasks. A task computes one block of a sequence's
// queries for some of the heads; it iterates over the keys in tiles of kKeyTile. Blocks of more
// than kFewRows queries use attention/many_queries-inl.h, smaller ones attention/few_queries-inl.h;
// both give the same bits (see attention/tile-inl.h).
#include <algorithm>
#include <span>

#include "kernels/attention/task_cpu.h"
#include "kernels/cpu_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/attention_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/attention/few_queries-inl.h"
#include "kernels/attention/many_queries-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quintet::cpu {
namespace HWY_NAMESPACE {

void AttendTask(const AttentionTask& task, const AttentionScratch& scratch) {
  task.rows <= kFewRows ? AttendFew(task, scratch) : AttendWide(task, scratch);
}

}  // namespace HWY_NAMESPACE
}  // namespace quintet::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quintet::cpu {
namespace {

HWY_EXPORT(AttendTask);

int64_t KvLen(const AttentionArgs& args, int64_t sequence) {
  const size_t s = static_cast<size_t>(sequence);
  return args.cache != nullptr ? args.kv_lens[s] : args.kv_offsets[s + 1] - args.kv_offsets[s];
}

int64_t GlobalCount(const AttentionArgs& args, int64_t sequence) {
  const size_t s = static_cast<size_t>(sequence);
  return args.globals == nullptr ? 0 : args.globals->offsets[s + 1] - args.globals->offsets[s];
}

// Maps block numbers to query blocks (up to block_rows queries of one sequence) by arithmetic
// instead of a table. Sequence s owns the numbers First(s) to First(s + 1) - 1: at least one number
// per block, sometimes more. For a surplus number, Find returns an empty block.
class BlockNumbers {
 public:
  BlockNumbers(const AttentionArgs& args, int64_t block_rows)
      : offsets_(args.q_offsets), block_rows_(block_rows) {}

  int64_t total() const { return First(static_cast<int64_t>(offsets_.size()) - 1); }

  // Returns the sequence that owns block `number`. [*begin, *end) are the block's rows within that
  // sequence; begin >= end if `number` is a surplus number, which has no rows.
  int64_t Find(int64_t number, int64_t* begin, int64_t* end) const {
    // Binary search for the sequence that owns `number`. First(s) is the first block number of
    // sequence s. Invariant: First(low) <= number < First(high).
    int64_t low = 0, high = static_cast<int64_t>(offsets_.size()) - 1;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (First(middle) <= number ? low : high) = middle;
    }
    *begin = (number - First(low)) * block_rows_;
    *end = std::min<int64_t>(*begin + block_rows_, Offset(low + 1) - Offset(low));
    return low;
  }

 private:
  int64_t Offset(int64_t s) const { return offsets_[static_cast<size_t>(s)]; }
  int64_t First(int64_t s) const { return (Offset(s) - Offset(0)) / block_rows_ + s; }

  std::span<const int32_t> offsets_;
  int64_t block_rows_;
};

// Returns the number of multiply-adds in both GEMMs of the call, hidden (query, key) pairs
// included.
int64_t MultiplyAdds(const AttentionArgs& args) {
  int64_t pairs = 0;
  for (size_t i = 0; i + 1 < args.q_offsets.size(); ++i) {
    const int64_t s = static_cast<int64_t>(i);
    pairs += int64_t{args.q_offsets[i + 1] - args.q_offsets[i]} *
             (KvLen(args, s) + GlobalCount(args, s));
  }
  return 2 * pairs * args.q.dim[1] * args.q.dim[2];
}

// Partition of a call into tasks: blocks of query rows x groups of heads. The choice of the
// partition does not change the call's results.
struct Partition {
  Partition(const AttentionArgs& args, int threads) : heads(args.q.dim[1]) {
    while (block_rows > 32 && Blocks(args).total() * heads < 4 * threads) block_rows /= 2;
    blocks = Blocks(args).total();
    head_group = std::max<int64_t>(1, heads * blocks / (16 * threads));
    head_groups = (heads + head_group - 1) / head_group;
  }
  BlockNumbers Blocks(const AttentionArgs& args) const { return BlockNumbers(args, block_rows); }
  int64_t tasks() const { return blocks * head_groups; }

  int64_t heads, block_rows = kQueryBlock, blocks, head_group, head_groups;
};

void RunTask(const AttentionArgs& args, const Partition& partition, int64_t number, int thread) {
  int64_t begin, end;
  const int64_t s = partition.Blocks(args).Find(number % partition.blocks, &begin, &end);
  if (begin >= end) return;
  const int64_t head_dim = args.q.dim[2], kv_len = KvLen(args, s);
  const size_t i = static_cast<size_t>(s);
  const int64_t q_len = args.q_offsets[i + 1] - args.q_offsets[i];
  const int64_t position = args.q_positions.empty() ? kv_len - q_len : args.q_positions[i];
  AttentionScratch scratch;
  const int64_t scratch_bytes = scratch.Carve(nullptr, head_dim);
  scratch.Carve(args.scratch.as<char>() + thread * scratch_bytes, head_dim);
  const int64_t head = number / partition.blocks * partition.head_group;
  const AttentionTask task{&args,
                           s,
                           head,
                           std::min(partition.heads, head + partition.head_group),
                           args.q_offsets[i] + begin,
                           end - begin,
                           position + begin,
                           kv_len,
                           GlobalCount(args, s)};
  HWY_DYNAMIC_DISPATCH(AttendTask)(task, scratch);
}

}  // namespace

void Attention(const AttentionArgs& args, ThreadPool& pool) {
  constexpr int64_t kSmallWork = 30000;  // about 1.5 us: not worth sharing with other threads
  const Partition partition(args, pool.threads());
  const auto body = [&](int64_t number, int thread) { RunTask(args, partition, number, thread); };
  if (MultiplyAdds(args) >= kSmallWork) return pool.ParallelFor(partition.tasks(), body);
  for (int64_t number = 0; number < partition.tasks(); ++number) body(number, 0);
}

int64_t AttentionScratchBytes(int64_t, int64_t, int64_t head_dim, const ThreadPool& pool) {
  AttentionScratch scratch;
  return scratch.Carve(nullptr, head_dim) * pool.threads();
}

}  // namespace quintet::cpu
#endif
