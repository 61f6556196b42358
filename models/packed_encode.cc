// PackedModel's encoding of whole inputs, in slices: through an encoder, or through a causal
// model's layers when nothing will be generated.
#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "kernels/attention/attention.h"
#include "kernels/base/carver.h"
#include "kernels/linear/gemm_rows.h"
#include "kernels/ops/embedding.h"
#include "models/packed_model.h"

namespace quintet {
namespace {

constexpr int64_t kTileWords = sizeof(MaskTile) / 4;
constexpr int64_t kSegmentWords = sizeof(PoolSegment) / 4;
constexpr int64_t kRangeWords = sizeof(RowRange) / 4;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Upper bound of the length of ColumnMask::tiles for `tokens` tokens in any number of inputs. There
// is one MaskTile per 64 keys of an input. The bound is reached when every input has one token.
int64_t MaxMaskTiles(int64_t tokens) { return FirstMaskTile(tokens, tokens); }

}  // namespace

void PackedModel::CarveArrays(Carver& carver) {
  const int64_t tokens = limits_.max_encode_tokens;
  encoder_host_ = carver.TakeTensor(DType::kF32, {tokens, config_.d_model});
  if (encoder_host_.defined()) encoder_x_ = stream_.DeviceTensor(encoder_host_);
  encoder_arrays_ = carver.TakeTensor(DType::kI32, {3 * tokens + 1});
  block_offsets_ = carver.TakeTensor(DType::kI32, {kBlockRows + 1});
  block_positions_ = carver.TakeTensor(DType::kI32, {kBlockRows});
  if (stream_.backend() == Backend::kCuda) {
    pool_segments_ = carver.TakeTensor(DType::kI32, {tokens, kSegmentWords});
  }
  if (adapter_slot_count() > 0) encoder_adapters_ = carver.TakeTensor(DType::kI32, {tokens});
  if (config_.global_block > 0) {
    const int64_t most = config_.GlobalTokens(tokens);
    globals_.ranges = carver.TakeTensor(DType::kI32, {most, kRangeWords});
    globals_.offsets = carver.TakeTensor(DType::kI32, {tokens + 1});
    if (adapter_slot_count() > 0) globals_.adapters = carver.TakeTensor(DType::kI32, {most});
  }
  if (config_.has_encoder() && config_.local_radius == 0) return;
  mask_lower_ = carver.TakeTensor(DType::kI32, {tokens});
  mask_upper_ = carver.TakeTensor(DType::kI32, {tokens});
  mask_tiles_ = carver.TakeTensor(DType::kI32, {MaxMaskTiles(tokens), kTileWords});
  if (config_.has_encoder()) return;
  gather_rows_ = carver.TakeTensor(DType::kI32, {limits_.max_step_tokens});
}

void PackedModel::BeginEncode(const EncodeBatch& batch) {
  const std::span<const int32_t> offsets = batch.offsets;
  QT_CHECK_GE(offsets.size(), size_t{2});
  QT_CHECK_EQ(offsets.front(), 0);
  QT_CHECK_EQ(offsets.back(), static_cast<int32_t>(batch.tokens.size()));
  QT_CHECK_LE(static_cast<int64_t>(batch.tokens.size()), limits_.max_encode_tokens);
  encoder_rows_ = static_cast<int64_t>(batch.tokens.size());
  encoder_padded_rows_ = stream_.backend() == Backend::kCpu
                             ? encoder_rows_
                             : PaddedGemmRows(encoder_rows_, limits_.max_encode_tokens);
  encoder_sequences_ = static_cast<int64_t>(offsets.size()) - 1;
  stream_.WaitForH2D(encode_upload_);
  const int64_t padded = encoder_padded_rows_, used = 2 * padded + encoder_sequences_ + 1;
  encoder_tokens_ = encoder_arrays_.Rows(0, padded);
  encoder_positions_ = encoder_arrays_.Rows(padded, 2 * padded);
  encoder_offsets_ = encoder_arrays_.Rows(2 * padded, used);
  std::fill_n(encoder_arrays_.as<int32_t>(), 2 * padded, 0);
  int32_t* positions = encoder_positions_.as<int32_t>();
  for (int64_t s = 0; s < encoder_sequences_; ++s) {
    QT_CHECK_LT(offsets[s], offsets[s + 1]);
    std::iota(positions + offsets[s], positions + offsets[s + 1], 0);
  }
  std::copy(batch.positions.begin(), batch.positions.end(), positions);
  std::copy(batch.tokens.begin(), batch.tokens.end(), encoder_tokens_.as<int32_t>());
  std::copy(offsets.begin(), offsets.end(), encoder_offsets_.as<int32_t>());
  encode_upload_ = stream_.CopyH2D(encoder_arrays_.data, used * 4);
  SetMask(batch);
  SetGlobals(batch);
  SetAdapters(batch);
  layer_ = row_ = 0;
  sweep_ = Sweep::kProject;
}

// Copies the adapter of each row to the device. Padding has none.
void PackedModel::SetAdapters(const EncodeBatch& batch) {
  QT_CHECK(batch.adapters.empty() || batch.adapters.size() + 1 == batch.offsets.size());
  encoder_adapted_ = false;
  encoder_adapter_ = CommonAdapter(batch.adapters);
  encoder_ranges_.clear();
  for (const int32_t adapter : batch.adapters) {
    QT_CHECK(-1 <= adapter && adapter < adapter_slot_count());
    encoder_adapted_ = encoder_adapted_ || adapter >= 0;
  }
  if (!encoder_adapted_) return;
  // A batch of many rows merges each weight for itself, so that few of them are worth a copy.
  constexpr int64_t kCalls = MergedWeights::kCallsToMerge / 2;
  if (merged_ != nullptr && encoder_adapter_ >= 0) merged_->Use(encoder_adapter_, kCalls);
  int32_t* const rows = encoder_adapters_.as<int32_t>();
  std::fill_n(rows, encoder_padded_rows_, -1);
  for (size_t s = 0; s < batch.adapters.size(); ++s) {
    std::fill(rows + batch.offsets[s], rows + batch.offsets[s + 1], batch.adapters[s]);
  }
  encode_upload_ = stream_.CopyH2D(rows, encoder_padded_rows_ * 4);
  if (globals_.rows > 0) {
    int32_t* const globals = globals_.adapters.as<int32_t>();
    for (int64_t g = 0; g < globals_.rows; ++g) globals[g] = rows[globals_.all_ranges()[g].begin];
    encode_upload_ = stream_.CopyH2D(globals, globals_.rows * 4);
  }
  if (stream_.backend() == Backend::kCpu) return;
  DivideByAdapter({rows, static_cast<size_t>(encoder_rows_)}, kMinMergedLoraRows, &encoder_ranges_);
  if (!encoder_ranges_.empty()) encoder_ranges_.back().end = encoder_padded_rows_;
}

// Copies the batch's mask (lower_begin, upper_end), or that of the encoder's window, to the device.
// mask_ stays empty if no key is hidden.
void PackedModel::SetMask(const EncodeBatch& batch) {
  bidirectional_ = batch.bidirectional;
  mask_ = ColumnMask();
  const bool plain = batch.lower_begin.empty() && batch.upper_end.empty();
  if (config_.has_encoder()) {
    QT_CHECK(plain && batch.positions.empty() && !batch.bidirectional);
    return SetWindow(batch.offsets);
  }
  QT_CHECK(batch.positions.empty() || batch.positions.size() == batch.tokens.size());
  if (plain) return;
  const auto copy = [this](std::span<const int32_t> column, const Tensor& to) {
    if (column.empty()) return std::span<const int32_t>();
    QT_CHECK_EQ(static_cast<int64_t>(column.size()), encoder_rows_);
    std::copy(column.begin(), column.end(), to.as<int32_t>());
    encode_upload_ = stream_.CopyH2D(to.data, encoder_rows_ * 4);
    return std::span<const int32_t>(to.as<int32_t>(), column.size());
  };
  mask_.lower_begin = copy(batch.lower_begin, mask_lower_);
  mask_.upper_end = copy(batch.upper_end, mask_upper_);
  SummariseMask(batch.offsets);
}

// The mask of ModelConfig::local_radius; none if all inputs are so short that it hides nothing.
void PackedModel::SetWindow(std::span<const int32_t> offsets) {
  const int64_t radius = config_.local_radius;
  int64_t longest = 0;
  for (int64_t s = 0; s < encoder_sequences_; ++s) {
    longest = std::max<int64_t>(longest, offsets[s + 1] - offsets[s]);
  }
  if (radius == 0 || longest <= radius + 1) return;
  const int32_t* positions = encoder_positions_.as<int32_t>();
  int32_t* lower = mask_lower_.as<int32_t>();
  int32_t* upper = mask_upper_.as<int32_t>();
  for (int64_t row = 0; row < encoder_rows_; ++row) {
    lower[row] = positions[row] + static_cast<int32_t>(radius) + 1;
    upper[row] = positions[row] - static_cast<int32_t>(radius);
  }
  const size_t rows = static_cast<size_t>(encoder_rows_);
  stream_.CopyH2D(lower, encoder_rows_ * 4);
  encode_upload_ = stream_.CopyH2D(upper, encoder_rows_ * 4);
  mask_.lower_begin = {lower, rows};
  mask_.upper_end = {upper, rows};
  mask_.reach = radius;
  SummariseMask(offsets);
}

// Copies one summary per 64 keys (MaskTile) of mask_ to the device, by which attention skips keys
// that are hidden from all queries of a block. They are computed once for all layers.
void PackedModel::SummariseMask(std::span<const int32_t> offsets) {
  const size_t tiles = static_cast<size_t>(MaskTiles(offsets));
  const std::span<MaskTile> summaries(mask_tiles_.as<MaskTile>(), tiles);
  quintet::SummariseMask(mask_.columns(), offsets, summaries);
  encode_upload_ =
      stream_.CopyH2D(summaries.data(), static_cast<int64_t>(tiles * sizeof(MaskTile)));
  mask_.tiles = summaries;
}

// Assigns the rows of each input to its global tokens: global_block rows to each, and the rows that
// are left to the last one. An input of fewer rows has no global tokens.
void PackedModel::SetGlobals(const EncodeBatch& batch) {
  globals_.rows = 0;
  if (config_.global_block == 0) return;
  RowRange* ranges = globals_.ranges.as<RowRange>();
  int32_t* offsets = globals_.offsets.as<int32_t>();
  const int32_t block = static_cast<int32_t>(config_.global_block);
  offsets[0] = 0;
  for (size_t s = 0; s + 1 < batch.offsets.size(); ++s) {
    const int32_t begin = batch.offsets[s], end = batch.offsets[s + 1];
    const int32_t count = static_cast<int32_t>(config_.GlobalTokens(end - begin));
    for (int32_t g = 0; g < count; ++g) {
      ranges[offsets[s] + g] = {begin + g * block, g + 1 < count ? begin + (g + 1) * block : end};
    }
    offsets[s + 1] = offsets[s] + count;
  }
  globals_.rows = offsets[encoder_sequences_];
  encode_upload_ = stream_.CopyH2D(offsets, (encoder_sequences_ + 1) * 4);
  if (globals_.rows == 0) return;
  encode_upload_ = stream_.CopyH2D(ranges, globals_.rows * static_cast<int64_t>(sizeof(RowRange)));
}

// Multiply-adds of one row in all GEMMs of one layer. EncodeSlice measures work in units of this
// size.
int64_t PackedModel::LayerCostPerRow() const {
  const LayerWeights& w = InputStack().layers[0];
  return w.qkv.n() * w.qkv.k() + w.attention_out.n() * w.attention_out.k() +
         w.ffn_in.n() * w.ffn_in.k() + w.ffn_out.n() * w.ffn_out.k();
}

// Index of the input in the current batch that contains packed row `row`.
int64_t PackedModel::SequenceOf(int64_t row) const {
  const int32_t* offsets = encoder_offsets_.as<int32_t>();
  return std::upper_bound(offsets, offsets + encoder_sequences_, row) - offsets - 1;
}

// Encodes the whole batch by launching captured CUDA graphs and returns true. Returns false, with
// nothing enqueued, if there are no graphs for this batch or it cannot use graphs. Only batches on
// a GPU with at most 1024 rows, without a mask of the caller, not `bidirectional` and with empty
// encoder_ranges_ use graphs. (An encoder's window and global tokens depend only on the offsets.)
// Graphs are captured the second time that a batch has the same key (encode_graphs_).
bool PackedModel::EncodeByGraph() {
  constexpr int64_t kMaxRows = 1024;
  constexpr int64_t kFirstGraphLayers = 2;
  if (stream_.backend() == Backend::kCpu || encoder_rows_ > kMaxRows) return false;
  const bool masked_by_caller = !mask_.tiles.empty() && config_.local_radius == 0;
  if (masked_by_caller || bidirectional_) return false;
  const bool merged = Merged(encoder_adapter_);
  if (!merged && !encoder_ranges_.empty()) return false;
  const int64_t layers = static_cast<int64_t>(InputStack().layers.size());
  const int32_t* offsets = encoder_offsets_.as<int32_t>();
  std::vector<int32_t> lengths(offsets, offsets + encoder_sequences_ + 1);
  // With adapters there are other launches than without, and merged_ has other addresses.
  if (encoder_adapted_) lengths.push_back(merged ? -2 : -1);
  const EncodeGraphs* graphs = encode_graphs_.Use(lengths, [&] {
    auto parts = std::make_unique<EncodeGraphs>();
    for (int64_t begin = 0; begin < layers;) {
      const int64_t end = begin == 0 ? std::min(kFirstGraphLayers, layers) : layers;
      parts->push_back(stream_.device().CaptureGraph([&] {
        for (layer_ = begin; layer_ < end; ++layer_) {
          RunInputRows(0, encoder_rows_, Sweep::kProject);
          RunInputRows(0, encoder_rows_, Sweep::kFinish);
        }
      }));
      begin = end;
    }
    layer_ = 0;
    if (std::count(parts->begin(), parts->end(), nullptr) > 0) parts = nullptr;
    return parts;
  });
  if (graphs == nullptr) return false;
  for (const auto& graph : *graphs) stream_.device().LaunchGraph(*graph);
  layer_ = layers;
  return true;
}

bool PackedModel::EncodeSlice(int64_t work) {
  QT_CHECK_GT(encoder_rows_, 0);
  if (layer_ == 0 && row_ == 0 && sweep_ == Sweep::kProject && EncodeByGraph()) return true;
  // Bounds of the number of rows in a block. A block of fewer than min_rows rows is inefficient,
  // because each block reads all weights of the layer.
  const double max_rows = static_cast<double>(EncodeBlockRows());
  const double min_rows = stream_.backend() == Backend::kCpu ? 32 : max_rows;
  const std::vector<LayerWeights>& layers = InputStack().layers;
  const int64_t depth = static_cast<int64_t>(layers.size());
  const int64_t unit = LayerCostPerRow();
  double budget = static_cast<double>(work) * static_cast<double>(unit);
  while (layer_ < depth && budget > 0) {
    const LayerWeights& w = layers[layer_];
    int64_t cost = w.qkv.n() * w.qkv.k();
    if (sweep_ == Sweep::kFinish) {
      const int32_t* sequence = encoder_offsets_.as<int32_t>() + SequenceOf(row_);
      cost = unit - cost + 2 * config_.inner() * config_.EncoderKeys(sequence[1] - sequence[0]);
    }
    const double affordable = std::clamp(budget / static_cast<double>(cost), min_rows, max_rows);
    // Split the remaining rows into blocks of equal size, to avoid a small last block.
    const int64_t remaining = encoder_rows_ - row_;
    const int64_t blocks = CeilDiv(remaining, static_cast<int64_t>(affordable));
    const int64_t rows = CeilDiv(remaining, blocks);
    RunInputRows(row_, row_ + rows, sweep_);
    budget -= static_cast<double>(rows * cost);
    row_ += rows;
    if (row_ < encoder_rows_) continue;
    row_ = 0;
    if (sweep_ == Sweep::kFinish) {
      Observe(!config_.has_encoder(), layer_++, encoder_x_.Rows(0, encoder_rows_));
    }
    sweep_ = sweep_ == Sweep::kProject ? Sweep::kFinish : Sweep::kProject;
  }
  return layer_ == depth;
}

// Runs the current layer (number layer_) over rows [begin, end) of the input batch. A layer takes
// two sweeps over the batch: the first computes queries, keys and values of all rows, the second
// attention and feed-forward; `sweep` says which of them this call belongs to. In the first sweep
// of the first layer it runs the embedding before the layer; in the second sweep of the last layer
// it runs the final norm after the layer.
void PackedModel::RunInputRows(int64_t begin, int64_t end, Sweep sweep) {
  const StackWeights& stack = InputStack();
  const bool project = sweep == Sweep::kProject;
  if (begin == 0 && end == encoder_rows_) end = encoder_padded_rows_;
  const LayerRows rows = {.layer = layer_,
                          .begin = begin,
                          .x = encoder_x_.Rows(begin, end),
                          .positions = encoder_positions_.Rows(begin, end),
                          .qkv = encoder_qkv_.Rows(begin, end),
                          .project = project,
                          .finish = !project};
  // Between two calls for the same batch another adapter may have been merged.
  use_merged_ = Merged(encoder_adapter_);
  if (encoder_adapted_ && !use_merged_) {
    row_adapters_ = {encoder_adapters_.as<int32_t>() + begin, static_cast<size_t>(end - begin)};
    if (rows.count() == encoder_padded_rows_) row_ranges_ = encoder_ranges_;
  }
  if (project && layer_ == 0) {
    Embed({encoder_tokens_.Rows(begin, end), rows.positions, {}, rows.x});
  }
  Layer(rows);
  row_adapters_ = {};
  row_ranges_ = {};
  use_merged_ = false;
  const bool last_layer = layer_ + 1 == static_cast<int64_t>(stack.layers.size());
  if (!project && last_layer) FinalNorm(stack, rows.x, rows.x, {});
}

// Self-attention of a block of rows of the input batch; each row attends to the keys of its own
// input. The block may contain the end of one input, whole inputs, and the start of another.
Tensor PackedModel::AttendInput(const LayerRows& rows) {
  const int64_t begin = rows.begin, end = std::min(begin + rows.count(), encoder_rows_);
  const Tensor qkv = encoder_qkv_.Rows(0, encoder_rows_);
  const Tensor q = HeadsOf(rows.qkv.Rows(0, end - begin), QkvPart::kQuery);
  const Tensor attended = rows.qkv.Columns(0, config_.inner());
  const size_t batch_offsets = static_cast<size_t>(encoder_sequences_) + 1;
  ColumnMask mask = mask_;
  GlobalKeys globals;
  if (globals_.rows > 0) {
    const Tensor global_qkv = globals_.qkv.Rows(0, globals_.rows);
    globals = {.k = HeadsOf(global_qkv, QkvPart::kKey),
               .v = HeadsOf(global_qkv, QkvPart::kValue),
               .offsets = {globals_.offsets.as<int32_t>(), batch_offsets},
               .block = config_.global_block,
               .bias = &InputStack().layers[rows.layer].global_bias};
  }
  AttentionArgs args = {.q = q,
                        .out = q,
                        .k = HeadsOf(qkv, QkvPart::kKey),
                        .v = HeadsOf(qkv, QkvPart::kValue),
                        .causal = !config_.has_encoder() && !bidirectional_,
                        .bias = &InputStack().layers[rows.layer].bias,
                        .mask = mask.tiles.empty() ? nullptr : &mask,
                        .globals = globals_.rows == 0 ? nullptr : &globals,
                        .scale = AttentionScale(rows.layer),
                        .scratch = scratch_};
  const int32_t* offsets = encoder_offsets_.as<int32_t>();
  if (end - begin == encoder_rows_) {
    args.q_offsets = std::span(offsets, batch_offsets);
    args.kv_offsets = args.q_offsets;
    Attention(args, stream_);
    return attended;
  }
  const int64_t first = SequenceOf(begin);
  int32_t* block_offsets = block_offsets_.as<int32_t>();
  int32_t* block_positions = block_positions_.as<int32_t>();
  size_t sequences = 0;
  block_offsets[0] = 0;
  for (int64_t s = first; s < encoder_sequences_ && offsets[s] < end; ++s, ++sequences) {
    block_positions[sequences] = static_cast<int32_t>(std::max<int64_t>(begin - offsets[s], 0));
    block_offsets[sequences + 1] =
        static_cast<int32_t>(std::min<int64_t>(offsets[s + 1], end) - begin);
  }
  args.q_offsets = std::span(block_offsets, sequences + 1);
  args.kv_offsets = std::span(offsets + first, sequences + 1);
  args.q_positions = std::span(block_positions, sequences);
  // FirstMaskTile computes the index of a sequence's first mask tile: index of the sequence's first
  // key / 64 + number of the sequence. Here keys are numbered within the whole batch, but sequences
  // within this call: its sequence 0 is input `first` of the batch. The computed index is thus too
  // small by `first`; to make up for this, pass a view of the tiles that begins at tile `first`.
  if (args.mask != nullptr) mask.tiles = mask.tiles.subspan(static_cast<size_t>(first));
  if (args.globals != nullptr) {
    globals.offsets = globals.offsets.subspan(static_cast<size_t>(first), sequences + 1);
  }
  Attention(args, stream_);
  return attended;
}

Tensor PackedModel::EncodedStates() const {
  QT_CHECK_EQ(layer_, static_cast<int64_t>(InputStack().layers.size()));
  return encoder_x_.Rows(0, encoder_rows_);
}

Tensor PackedModel::HostEncoderStates() const {
  QT_CHECK_EQ(layer_, static_cast<int64_t>(InputStack().layers.size()));
  return encoder_host_.Rows(0, encoder_rows_);
}

bool PackedModel::PoolEncoded(std::span<const PoolSegment> segments) {
  if (stream_.backend() == Backend::kCpu) return false;
  QT_CHECK_LE(static_cast<int64_t>(segments.size()), limits_.max_encode_tokens);
  PoolSegment* const pinned = pool_segments_.as<PoolSegment>();
  stream_.WaitForH2D(pool_upload_);
  std::copy(segments.begin(), segments.end(), pinned);
  pool_upload_ =
      stream_.CopyH2D(pinned, static_cast<int64_t>(segments.size() * sizeof(PoolSegment)));
  PoolRows({.x = EncodedStates(), .segments = {pinned, segments.size()}, .y = HostEncoderStates()},
           stream_);
  return true;
}

Tensor PackedModel::EncodedRows(std::span<const int32_t> rows) {
  const int64_t count = static_cast<int64_t>(rows.size());
  QT_CHECK(!config_.has_encoder() && count <= limits_.max_step_tokens);
  stream_.WaitForH2D(gather_upload_);
  std::copy(rows.begin(), rows.end(), gather_rows_.as<int32_t>());
  gather_upload_ = stream_.CopyH2D(gather_rows_.data, count * 4);
  const Tensor states = states_.Rows(0, count);
  // The embedding op is used to gather rows: the row numbers are its "ids", and the hidden states
  // are its "table".
  Embedding({.ids = gather_rows_.Rows(0, count), .table = EncodedStates(), .y = states}, stream_);
  return states;
}

}  // namespace quintet
