#include "models/packed_model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/attention.h"
#include "kernels/log_prob.h"

namespace quintet {

PackedModel::PackedModel(ModelConfig config, const ModelLimits& limits, ModelWeights weights,
                         ThreadPool* pool)
    : Model(std::move(config), limits, pool),
      weights_(std::move(weights)),
      block_rows_(std::max(kBlockRows, limits.max_step_tokens)) {
  memory_.weights = weights_.bytes;
  memory_.parameters = weights_.parameters;
}

absl::Status PackedModel::Measure() {
  if (config_.has_decoder()) {
    cache_ = {.pages = limits_.cache_pages,
              .layers = config_.decoder_layers,
              .heads = config_.heads,
              .page_size = limits_.page_size,
              .head_dim = config_.head_dim};
    const int64_t page_bytes = cache_.page_elements() * 4;
    if (__builtin_mul_overflow(cache_.pages, page_bytes, &memory_.cache)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cache of ", cache_.pages, " pages of ", page_bytes, " bytes is too large"));
    }
  }
  Carver sizing(nullptr);
  Carve(sizing);
  memory_.workspace = sizing.used_bytes();
  return absl::OkStatus();
}

absl::Status PackedModel::Allocate() {
  if (absl::Status status = Measure(); !status.ok()) return status;
  absl::StatusOr<Buffer> pages = Buffer::Allocate(memory_.cache);
  if (!pages.ok()) return pages.status();
  pages_ = *std::move(pages);
  cache_.data = pages_.data();
  absl::StatusOr<Buffer> workspace = Buffer::Allocate(memory_.workspace);
  if (!workspace.ok()) return workspace.status();
  workspace_ = *std::move(workspace);
  Carver carver(workspace_.data());
  Carve(carver);
  return absl::OkStatus();
}

int64_t PackedModel::ProductScratchBytes(const LinearWeight& w, int64_t rows) const {
  return w.defined() ? LinearScratchBytes(w, rows, stream_) : 0;
}

void PackedModel::Carve(Carver& carver) {
  const int64_t rows = limits_.max_step_tokens;
  if (config_.has_decoder()) {
    x_ = carver.TakeTensor(DType::kF32, {rows, config_.d_model});
    qkv_ = carver.TakeTensor(DType::kF32, {rows, 3 * config_.inner()});
    states_ = carver.TakeTensor(DType::kF32, {rows, config_.d_model});
    positions_ = carver.TakeTensor(DType::kI32, {rows});
    new_slots_ = carver.TakeTensor(DType::kI32, {rows});
  }
  normed_ = carver.TakeTensor(DType::kF32, {block_rows_, config_.d_model});
  hidden_ = carver.TakeTensor(DType::kF32, {block_rows_, config_.d_ff});

  int64_t scratch = AttentionScratchBytes(config_.heads, config_.head_dim, stream_);
  const auto need = [&](int64_t bytes) { scratch = std::max(scratch, bytes); };
  for (const StackWeights* stack : {&weights_.encoder, &weights_.decoder}) {
    for (const LayerWeights& w : stack->layers) {
      for (const LinearWeight* product :
           {&w.qkv, &w.attention_out, &w.cross_q, &w.cross_out, &w.ffn_in, &w.ffn_out}) {
        need(ProductScratchBytes(*product, block_rows_));
      }
    }
  }
  need(ProductScratchBytes(weights_.cross_kv, limits_.max_encode_tokens));
  need(ProductScratchBytes(weights_.classifier_dense, block_rows_));
  need(ProductScratchBytes(weights_.classifier, block_rows_));
  if (weights_.head.defined()) {
    need(LinearScratchBytes(weights_.head, block_rows_, stream_));
    need(TargetLogProbScratchBytes(weights_.head, kBlockRows, kMaxTopLogProbs, stream_));
  }
  scratch_ = carver.TakeTensor(DType::kI8, {scratch});
}

void PackedModel::Product(LinearArgs args) {
  args.scratch = scratch_;
  Linear(args, stream_);
}

void PackedModel::ArrangeRows(const DecodeBatch& batch) {
  const int64_t sequences = static_cast<int64_t>(batch.kv_lens.size());
  const int64_t slots = cache_.pages * cache_.page_size;
  QT_CHECK_EQ(static_cast<int64_t>(batch.offsets.size()), sequences + 1);
  QT_CHECK_LE(sequences, limits_.max_step_sequences);
  QT_CHECK_EQ(batch.offsets.front(), 0);
  QT_CHECK_EQ(batch.offsets.back(), static_cast<int32_t>(batch.tokens.size()));
  QT_CHECK_LE(static_cast<int64_t>(batch.tokens.size()), limits_.max_step_tokens);
  int32_t* positions = positions_.as<int32_t>();
  int32_t* new_slots = new_slots_.as<int32_t>();
  for (int64_t s = 0; s < sequences; ++s) {
    const int32_t begin = batch.offsets[s], end = batch.offsets[s + 1];
    const int32_t first = batch.kv_lens[s] - (end - begin);
    QT_CHECK_LE(begin, end);
    QT_CHECK_GE(first, 0);
    QT_CHECK_LE(static_cast<int64_t>(batch.kv_lens[s]), batch.slots_stride);
    for (int32_t row = begin; row < end; ++row) {
      positions[row] = first + row - begin;
      new_slots[row] = batch.slots[s * batch.slots_stride + positions[row]];
      QT_CHECK_GE(new_slots[row], 0);
      QT_CHECK_LT(new_slots[row], slots);
    }
  }
}

Tensor PackedModel::HeadsOf(const Tensor& qkv, int part) const {
  const int64_t inner = config_.inner();
  return qkv.Columns(part * inner, (part + 1) * inner).SplitLast(config_.head_dim);
}

Tensor PackedModel::SelfAttend(int64_t layer, const DecodeBatch& batch, const Tensor& qkv,
                               const PositionBias* bias, float scale) {
  const Tensor q = HeadsOf(qkv, 0);
  StoreKv({.k = HeadsOf(qkv, 1),
           .v = HeadsOf(qkv, 2),
           .cache = &cache_,
           .layer = layer,
           .slots = absl::MakeConstSpan(new_slots_.as<int32_t>(), batch.tokens.size())},
          stream_);
  Attention({.q = q,
             .out = q,
             .q_offsets = batch.offsets,
             .cache = &cache_,
             .layer = layer,
             .slots = batch.slots,
             .slots_stride = batch.slots_stride,
             .kv_lens = batch.kv_lens,
             .causal = true,
             .bias = bias,
             .scale = scale,
             .scratch = scratch_},
            stream_);
  return qkv.Columns(0, config_.inner());
}

Tensor PackedModel::GatherWanted(const DecodeBatch& batch, const Tensor& x) {
  const int64_t wanted = static_cast<int64_t>(batch.wanted.size());
  QT_CHECK_LE(wanted, x.dim[0]);
  for (int64_t i = 0; i < wanted; ++i) {
    QT_CHECK_GE(batch.wanted[i], 0);
    QT_CHECK_LT(batch.wanted[i], x.dim[0]);
    std::memcpy(states_.Rows(i, i + 1).data, x.Rows(batch.wanted[i], batch.wanted[i] + 1).data,
                static_cast<size_t>(config_.d_model) * sizeof(float));
  }
  return states_.Rows(0, wanted);
}

void PackedModel::Logits(const Tensor& states, const Tensor& logits) {
  QT_CHECK(weights_.head.defined());
  for (int64_t begin = 0; begin < states.dim[0]; begin += block_rows_) {
    const int64_t end = std::min(begin + block_rows_, states.dim[0]);
    Product({.x = states.Rows(begin, end),
             .w = &weights_.head,
             .alpha = weights_.logit_scale,
             .y = logits.Rows(begin, end)});
  }
}

void PackedModel::TargetLogProbs(const Tensor& states, const Tensor& targets,
                                 const Tensor& log_probs, const Tensor& top_log_probs,
                                 const Tensor& top_tokens) {
  QT_CHECK(weights_.head.defined());
  QT_CHECK_EQ(top_log_probs.defined(), top_tokens.defined());
  if (top_tokens.defined()) QT_CHECK_LE(top_tokens.dim[1], kMaxTopLogProbs);
  const auto rows = [](const Tensor& t, int64_t begin, int64_t end) {
    return t.defined() ? t.Rows(begin, end) : t;
  };
  for (int64_t begin = 0; begin < states.dim[0]; begin += kBlockRows) {
    const int64_t end = std::min(begin + kBlockRows, states.dim[0]);
    TargetLogProb({.hidden = states.Rows(begin, end),
                   .head = &weights_.head,
                   .alpha = weights_.logit_scale,
                   .targets = targets.Rows(begin, end),
                   .log_probs = log_probs.Rows(begin, end),
                   .top_log_probs = rows(top_log_probs, begin, end),
                   .top_tokens = rows(top_tokens, begin, end),
                   .scratch = scratch_},
                  stream_);
  }
}

void PackedModel::Classify(const Tensor& states, const Tensor& logits) {
  QT_CHECK(weights_.classifier.defined());
  for (int64_t begin = 0; begin < states.dim[0]; begin += block_rows_) {
    const int64_t end = std::min(begin + block_rows_, states.dim[0]);
    Tensor x = states.Rows(begin, end);
    if (weights_.classifier_dense.defined()) {
      const Tensor dense = normed_.Rows(0, end - begin);
      Product({.x = x,
               .w = &weights_.classifier_dense,
               .bias = weights_.classifier_dense_bias,
               .activation = Activation::kTanh,
               .y = dense});
      x = dense;
    }
    Product({.x = x,
             .w = &weights_.classifier,
             .bias = weights_.classifier_bias,
             .y = logits.Rows(begin, end)});
  }
}

}  // namespace quintet
