#include "models/packed_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/attention.h"
#include "kernels/log_prob.h"
#include "kernels/norm.h"

namespace quintet {

PackedModel::PackedModel(ModelConfig config, const ModelLimits& limits, ModelWeights weights,
                         const Stream& stream)
    : Model(std::move(config), limits, stream),
      weights_(std::move(weights)),
      block_rows_(std::max(EncodeBlockRows(), limits.max_step_tokens)),
      activations_(weights_.activations),
      step_(&stream_) {
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
    cache_.dtype = activations_;
    const int64_t page_bytes = cache_.page_elements() * DTypeBytes(activations_);
    if (__builtin_mul_overflow(cache_.pages, page_bytes, &memory_.cache)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cache of ", cache_.pages, " pages of ", page_bytes, " bytes is too large"));
    }
  }
  Carver workspace(nullptr), arrays(nullptr);
  Carve(workspace);
  CarveArrays(arrays);
  memory_.workspace = workspace.used_bytes() + arrays.used_bytes();
  if (config_.has_decoder()) memory_.workspace += StepArrays::BlockBytes(FirstShape());
  return absl::OkStatus();
}

// What the first block of a step's arrays is for. On a GPU it has room for the longest sequences,
// so that it never grows; on a CPU longer ones make it grow, which costs nothing but the time.
StepShape PackedModel::FirstShape() const {
  const int64_t slots = limits_.cache_pages * limits_.page_size;
  const bool grows = stream_.backend() == Backend::kCpu;
  const int64_t tokens = std::min<int64_t>(grows ? 512 : 8192, slots);
  const int64_t source_tokens = std::min(grows ? 512 : limits_.max_encode_tokens, slots);
  const int64_t sequences = limits_.max_step_sequences;
  StepShape shape{limits_.max_step_tokens, sequences, sequences,
                  limits_.max_step_tokens, tokens,    source_tokens};
  return grows ? shape : shape.Rounded(limits_);
}

absl::Status PackedModel::Allocate() {
  if (absl::Status status = Measure(); !status.ok()) return status;
  if (config_.has_decoder()) {
    if (absl::Status status = step_.Reserve(FirstShape()); !status.ok()) return status;
  }
  absl::StatusOr<Buffer> pages = stream_.Allocate(memory_.cache);
  if (!pages.ok()) return pages.status();
  pages_ = *std::move(pages);
  cache_.data = pages_.data();
  Carver workspace_size(nullptr), arrays_size(nullptr);
  Carve(workspace_size);
  CarveArrays(arrays_size);
  absl::StatusOr<Buffer> workspace = stream_.Allocate(workspace_size.used_bytes());
  if (!workspace.ok()) return workspace.status();
  workspace_ = *std::move(workspace);
  absl::StatusOr<Buffer> arrays = stream_.AllocateMirrored(arrays_size.used_bytes());
  if (!arrays.ok()) return arrays.status();
  arrays_ = *std::move(arrays);
  Carver workspace_carver(workspace_.data()), arrays_carver(arrays_.data());
  Carve(workspace_carver);
  CarveArrays(arrays_carver);
  stream_.Upload(arrays_.data(), arrays_.bytes());
  return stream_.Synchronize();
}

int64_t PackedModel::ProductScratchBytes(const LinearWeight& w, int64_t rows) const {
  return w.defined() ? LinearScratchBytes(w, rows, stream_) : 0;
}

void PackedModel::Carve(Carver& carver) {
  const int64_t rows = limits_.max_step_tokens;
  if (config_.has_decoder()) {
    x_ = carver.TakeTensor(DType::kF32, {rows, config_.d_model});
    qkv_ = carver.TakeTensor(activations_, {rows, 3 * config_.inner()});
    states_ = carver.TakeTensor(DType::kF32, {rows, config_.d_model});
    chosen_ = carver.TakeTensor(DType::kI32, {limits_.max_step_sequences});
    parents_ = carver.TakeTensor(DType::kI32, {limits_.max_step_sequences});
    history_ = carver.TakeTensor(DType::kI32, {limits_.cache_pages * limits_.page_size});
  }
  encoder_qkv_ = carver.TakeTensor(activations_, {limits_.max_encode_tokens, 3 * config_.inner()});
  normed_ = carver.TakeTensor(activations_, {block_rows_, config_.d_model});
  hidden_ = carver.TakeTensor(activations_, {block_rows_, config_.d_ff});

  int64_t scratch =
      AttentionScratchBytes(std::max(limits_.max_encode_tokens, limits_.max_step_tokens),
                            config_.heads, config_.head_dim, stream_);
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

void PackedModel::NormedProduct(const Tensor& gamma, const Tensor& beta, LinearArgs args) {
  const int64_t rows = args.x.dim[0];
  const float eps = config_.norm_eps;
  if (LinearTakesNorm(*args.w, rows, stream_)) {
    args.norm_gamma = gamma;
    args.norm_beta = beta;
    args.norm_eps = eps;
  } else {
    const Tensor normed = normed_.Rows(0, rows);
    if (beta.defined()) {
      LayerNorm({.x = args.x, .gamma = gamma, .beta = beta, .y = normed, .eps = eps}, stream_);
    } else {
      RmsNorm({.x = args.x, .gamma = gamma, .y = normed, .eps = eps}, stream_);
    }
    args.x = normed;
  }
  Product(args);
}

std::pair<StepShape, PackedModel::Recording> PackedModel::Arrange(const DecodeBatch& batch) {
  QT_CHECK_LE(static_cast<int64_t>(batch.kv_lens.size()), limits_.max_step_sequences);
  QT_CHECK_LE(static_cast<int64_t>(batch.tokens.size()), limits_.max_step_tokens);
  CheckBatch(batch);
  StepShape shape = StepShape::Of(batch);
  // More rows keep a device busy for longer than it takes to queue them.
  constexpr int64_t kMostPromptRows = 1024;
  Recording recording = Recording::kNone;
  if (stream_.backend() != Backend::kCpu) {
    if (shape.single()) {
      recording = Recording::kStep;
      shape = shape.Rounded(limits_);
    } else if (shape.rows <= kMostPromptRows) {
      recording = Recording::kPrompt;
      shape = shape.RoundedStrides();
    }
  }
  step_.Arrange(batch, shape, cache_.pages * cache_.page_size);
  MoveBeams({.slots = step_.batch().slots,
             .slots_stride = step_.batch().slots_stride,
             .lens = step_.batch().kv_lens,
             .moves = step_.batch().moves,
             .parents = parents_},
            stream_);
  if (captured_block_ != step_.block()) {
    step_graphs_.Clear();
    prompt_graphs_.Clear();
    joint_graphs_.Clear();
    captured_block_ = step_.block();
  }
  return {shape, recording};
}

void PackedModel::Run(const StepShape& shape, Recording recording) {
  switch (recording) {
    case Recording::kNone:
      return Forward();
    case Recording::kStep:
      return LaunchOrForward(step_graphs_.Use(shape, [this] { return CaptureForward(false); }));
    case Recording::kPrompt: {
      const DecodeBatch& batch = step_.batch();
      std::vector<int32_t> offsets(batch.offsets.begin(), batch.offsets.end());
      offsets.insert(offsets.end(), batch.group_offsets.begin(), batch.group_offsets.end());
      return LaunchOrForward(
          prompt_graphs_.Use({shape, std::move(offsets)}, [this] { return CaptureForward(true); }));
    }
  }
}

Tensor PackedModel::Decode(const DecodeBatch& batch) {
  const auto [shape, recording] = Arrange(batch);
  Run(shape, recording);
  return states_.Rows(0, static_cast<int64_t>(batch.wanted.size()));
}

DecodedStep PackedModel::DecodeThen(const DecodeBatch& batch, const Following& following) {
  const auto [shape, recording] = Arrange(batch);
  const Tensor states = states_.Rows(0, static_cast<int64_t>(batch.wanted.size()));
  if (recording == Recording::kStep) {
    const DeviceGraph* graph = joint_graphs_.Use({shape, following.key}, [&] {
      step_.PlanForAll(false);
      return stream_.device().Record([&] {
        Forward();
        following.queue(states);
      });
    });
    if (graph != nullptr) {
      stream_.device().Replay(*graph);
      return {states, true};
    }
  }
  Run(shape, recording);
  return {states};
}

TokenHistory PackedModel::history() const {
  const DecodeBatch& batch = step_.batch();
  return {history_, batch.slots, batch.slots_stride, batch.kv_lens};
}

void PackedModel::Forward() {
  const Tensor x = x_.Rows(0, step_.tokens().dim[0]);
  EmbedRows(step_.tokens(), step_.positions(), step_.new_slots(), x);
  for (int64_t layer = 0; layer < config_.decoder_layers; ++layer) {
    DecoderLayer(layer, x);
    Observe(true, layer, x);
  }
  const absl::Span<const int32_t> wanted = step_.batch().wanted;
  if (wanted.empty()) return;
  NormRows(weights_.decoder, x, states_.Rows(0, static_cast<int64_t>(wanted.size())), wanted);
}

std::unique_ptr<DeviceGraph> PackedModel::CaptureForward(bool these_rows) {
  step_.PlanForAll(these_rows);
  return stream_.device().Record([this] { Forward(); });
}

void PackedModel::LaunchOrForward(const DeviceGraph* graph) {
  if (graph != nullptr) {
    stream_.device().Replay(*graph);
  } else {
    Forward();
  }
}

Tensor PackedModel::HeadsOf(const Tensor& qkv, int part) const {
  const int64_t inner = config_.inner();
  return qkv.Columns(part * inner, (part + 1) * inner).SplitLast(config_.head_dim);
}

KvOutput PackedModel::KvOnTheWay(const LinearWeight& qkv, int64_t layer) {
  if (!LinearStoresKv(qkv, step_.tokens().dim[0], stream_)) return {};
  return {.cache = &cache_, .layer = layer, .slots = step_.new_slots()};
}

Tensor PackedModel::SelfAttend(int64_t layer, const Tensor& qkv, bool stored,
                               const PositionBias* bias, float scale) {
  const DecodeBatch& batch = step_.batch();
  const Tensor q = HeadsOf(qkv, 0);
  if (!stored) {
    StoreKv({.k = HeadsOf(qkv, 1),
             .v = HeadsOf(qkv, 2),
             .cache = &cache_,
             .layer = layer,
             .slots = step_.new_slots()},
            stream_);
  }
  Attention({.q = q,
             .out = q,
             .q_offsets = batch.offsets,
             .cache = &cache_,
             .layer = layer,
             .slots = batch.slots,
             .slots_stride = batch.slots_stride,
             .kv_lens = batch.kv_lens,
             .causal = true,
             .fresh = FreshKeys::kOwn,
             .bias = bias,
             .scale = scale,
             .scratch = scratch_},
            stream_);
  return qkv.Columns(0, config_.inner());
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
