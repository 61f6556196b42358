// TargetLogProb on the CPU. A block of rows is multiplied with the language-model head in panels of
// 32 columns (tokens). Each tile of logits is reduced immediately into a running log-sum-exp and
// the best tokens of its rows (log_prob_fold_cpu.h), so logits stay in cache and are never stored
// as a matrix.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/carver.h"
#include "kernels/cpu_ops.h"
#include "kernels/linear/linear_cpu.h"
#include "kernels/sampling/log_prob_fold_cpu.h"

namespace quintet::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// The vocabulary is split into segments, one task each. The split depends only on the vocabulary
// size, so the order of summation does not depend on the number of threads.
constexpr int64_t kMaxSegments = 32;

int64_t SegmentPanels(const WeightView& head) {
  return (Panels(head) + kMaxSegments - 1) / kMaxSegments;
}
int64_t Segments(const WeightView& head) {
  return (Panels(head) + SegmentPanels(head) - 1) / SegmentPanels(head);
}

struct Scratch {
  void* activations;
  RowSummary* summaries;  // [rows, segments]
  TokenLogit* best;       // [rows, segments, top]
  float* target_logits;   // [rows]
  int64_t bytes;
};

Scratch Carve(void* base, const WeightView& head, int64_t rows, int64_t top) {
  rows = std::min(rows, MostChunkRows(head));
  const int64_t summaries = rows * Segments(head);
  Carver carver(base);
  Scratch s;
  s.activations = carver.Take(ActivationBytes(head, rows));
  s.summaries =
      static_cast<RowSummary*>(carver.Take(summaries * static_cast<int64_t>(sizeof(RowSummary))));
  s.best = static_cast<TokenLogit*>(
      carver.Take(summaries * top * static_cast<int64_t>(sizeof(TokenLogit))));
  s.target_logits = static_cast<float*>(carver.Take(rows * 4));
  s.bytes = carver.used_bytes();
  return s;
}

int64_t Top(const TargetLogProbArgs& args) {
  return args.top_tokens.defined() ? args.top_tokens.dim[1] : 0;
}

// A chunk of rows that is processed at once.
struct Chunk {
  const TargetLogProbArgs* args;
  int64_t begin;  // first row of the chunk, in rows of the call
  Activations x;
  Scratch scratch;
};

// Updates the running log-sum-exp and the best tokens of each row with a tile of logits [rows,
// kPanelColumns]. The first row of the tile is row `row` of the chunk, its first column is token
// `token`. Stores the logits of target tokens that are in the tile.
void FoldBlock(const Chunk& chunk, const float* logits, int64_t row, int64_t rows, int64_t segment,
               int64_t token) {
  const TargetLogProbArgs& args = *chunk.args;
  const auto top = static_cast<int32_t>(Top(args));
  for (int64_t r = row; r < row + rows; ++r, logits += kPanelColumns) {
    const int64_t at = r * Segments(*args.head) + segment;
    FoldLogits(logits, static_cast<int32_t>(token), static_cast<int32_t>(args.head->n()), top,
               &chunk.scratch.summaries[at], &chunk.scratch.best[at * top]);
    const int64_t target =
        args.targets.as<int32_t>()[(chunk.begin + r) * args.targets.stride[0]] - token;
    if (target >= 0 && target < kPanelColumns) chunk.scratch.target_logits[r] = logits[target];
  }
}

// Computes the logits of one segment of the vocabulary for all rows of the chunk and reduces them
// to one summary per row: the log-sum-exp and the best tokens of the segment.
void FoldSegment(const Chunk& chunk, int64_t segment) {
  alignas(64) char tile[kChunkRows * kPanelColumns * kUnitBytes];
  alignas(64) float logits[kMostBlockRows * kPanelColumns];
  const TargetLogProbArgs& args = *chunk.args;
  const WeightView& head = *args.head;
  Epilogue epilogue;
  epilogue.w = &head;
  epilogue.bias = args.bias.defined() ? args.bias.f32() : nullptr;
  epilogue.alpha = args.alpha;
  epilogue.y = logits;
  epilogue.y_stride = kPanelColumns;
  for (int64_t r = 0; r < chunk.x.rows; ++r) {
    chunk.scratch.summaries[r * Segments(head) + segment] = {kMinusInfinity, 0.0f, 0};
  }
  const int64_t panel_bytes = Groups(head) * kPanelColumns * kUnitBytes;
  const int64_t end = std::min(Panels(head), (segment + 1) * SegmentPanels(head));
  for (int64_t panel = segment * SegmentPanels(head); panel < end; ++panel) {
    const int64_t token = panel * kPanelColumns;
    const auto finish = [&](const void* sums, int64_t row, int64_t rows) {
      if (head.n() - token < kPanelColumns) {
        std::fill(logits, logits + rows * kPanelColumns, kMinusInfinity);
      }
      epilogue.row_scales = chunk.x.scales == nullptr ? nullptr : chunk.x.scales + row;
      RunEpilogue(epilogue, sums, panel, 0, rows, 0);
      FoldBlock(chunk, logits, row, rows, segment, token);
    };
    PanelGemm p{.finish = finish};
    p.x = &chunk.x;
    p.panel = static_cast<const char*>(head.panels()) + panel * panel_bytes;
    if (panel + 1 < end) p.next = p.panel + panel_bytes;
    p.groups = Groups(head);
    p.tile = tile;
    chunk.x.kernel.multiply(p);
  }
}

// Merges the summaries of one row and writes the outputs of the row. A row has one summary per
// segment of the vocabulary (log-sum-exp and best tokens of the segment); the merged summary
// replaces the summary of the first segment.
void WriteOutputs(const Chunk& chunk, int64_t row) {
  const TargetLogProbArgs& args = *chunk.args;
  const int64_t segments = Segments(*args.head);
  const int64_t top = Top(args);
  RowSummary& total = chunk.scratch.summaries[row * segments];
  TokenLogit* best = &chunk.scratch.best[row * segments * top];
  for (int64_t s = 1; s < segments; ++s) {
    MergeSummary(chunk.scratch.summaries[row * segments + s], best + s * top,
                 static_cast<int32_t>(top), &total, best);
  }
  const int64_t out = chunk.begin + row;
  const float log_sum = std::log(total.sum);
  // Subtract the maximum first: logit - max is exact or nearly exact.
  const auto log_prob = [&](float logit) { return (logit - total.max) - log_sum; };
  args.log_probs.f32()[out * args.log_probs.stride[0]] = log_prob(chunk.scratch.target_logits[row]);
  for (int64_t i = 0; i < total.count; ++i) best[i].logit = log_prob(best[i].logit);
  std::sort(best, best + total.count, Better);
  for (int64_t i = 0; i < top; ++i) {
    const bool found = i < total.count;
    args.top_log_probs
        .f32()[out * args.top_log_probs.stride[0] + i * args.top_log_probs.stride[1]] =
        found ? best[i].logit : kMinusInfinity;
    args.top_tokens.as<int32_t>()[out * args.top_tokens.stride[0] + i * args.top_tokens.stride[1]] =
        found ? best[i].token : -1;
  }
}

}  // namespace

int64_t TargetLogProbScratchBytes(const WeightView& head, int64_t rows, int64_t top,
                                  const ThreadPool&) {
  return Carve(nullptr, head, rows, top).bytes;
}

void TargetLogProb(const TargetLogProbArgs& args, ThreadPool& pool) {
  const WeightView& head = *args.head;
  const int64_t all_rows = args.hidden.dim[0];
  Chunk chunk;
  chunk.args = &args;
  chunk.scratch = Carve(args.scratch.data, head, all_rows, Top(args));
  const int64_t segments = Segments(head);
  const int64_t chunk_rows = ChunkRows(head, all_rows);
  for (chunk.begin = 0; chunk.begin < all_rows; chunk.begin += chunk_rows) {
    const int64_t rows = std::min(chunk_rows, all_rows - chunk.begin);
    const Tensor scratch =
        Tensor::Dense(chunk.scratch.activations, DType::kI8, {ActivationBytes(head, rows)});
    chunk.x =
        PackActivations(head, args.hidden.Rows(chunk.begin, chunk.begin + rows), scratch, pool);
    pool.ParallelFor(segments, [&](int64_t segment, int) { FoldSegment(chunk, segment); });
    for (int64_t r = 0; r < rows; ++r) WriteOutputs(chunk, r);
  }
}

}  // namespace quintet::cpu
