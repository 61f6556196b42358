#include "models/packed_model.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/attention/attention.h"
#include "kernels/base/carver.h"
#include "kernels/base/status_macros.h"
#include "kernels/linear/linear.h"
#include "kernels/ops/norm.h"
#include "kernels/sampling/log_prob.h"

namespace quintet {

PackedModel::PackedModel(ModelConfig config, const ModelLimits& limits, SharedWeights weights,
                         const Stream& stream)
    : Model(std::move(config), limits, stream),
      shared_weights_(std::move(weights)),
      weights_(*shared_weights_),
      block_rows_(std::max(EncodeBlockRows(), limits.max_step_tokens)),
      activations_(weights_.activations),
      step_(&stream_) {
  cache_.dtype = activations_;
  memory_.weights = weights_.bytes;
  memory_.parameters = weights_.parameters;
}

absl::Status PackedModel::LoadAdapters(const LoadOptions& options, bool describe) {
  if (options.adapters.empty()) return absl::OkStatus();
  const AdapterPool::Options pool = {
      .sources = options.adapters,
      .slots = options.adapter_slots,
      .follow_symlinks = options.follow_symlinks,
      .describe = describe,
      .replica_of = options.replica_of == nullptr ? nullptr : options.replica_of->adapter_pool()};
  QT_ASSIGN_OR_RETURN(adapters_, AdapterPool::Load(pool, config_, weights_, activations_, stream_));
  memory_.adapters = adapters_->bytes();
  memory_.host_adapters = adapters_->host_bytes();
  memory_.adapter_reading = adapters_->reading_bytes();
  if (!options.merged_weights) return absl::OkStatus();
  memory_.merged_weights = MergedWeights::Bytes(*adapters_, stream_);
  if (describe || memory_.merged_weights == 0) return absl::OkStatus();
  QT_ASSIGN_OR_RETURN(merged_, MergedWeights::Allocate(adapters_.get(), stream_));
  return absl::OkStatus();
}

std::span<const AdapterHandle> PackedModel::adapters() const {
  return adapters_ == nullptr ? std::span<const AdapterHandle>() : adapters_->loaded();
}

std::vector<AdapterHandle> PackedModel::TakeAdapters() {
  return adapters_ == nullptr ? std::vector<AdapterHandle>() : adapters_->TakeLoaded();
}

absl::StatusOr<AdapterHandle> PackedModel::ReadAdapter(const AdapterSource& source) const {
  return adapters_ == nullptr ? Model::ReadAdapter(source) : adapters_->Read(source);
}

absl::Status PackedModel::Measure() {
  if (config_.has_decoder()) {
    QT_CHECK(cache_.Accepts(activations_));
    cache_ = {.dtype = cache_.dtype,
              .pages = limits_.cache_pages,
              .layers = config_.decoder_layers,
              .heads = config_.heads,
              .page_size = limits_.page_size,
              .head_dim = config_.head_dim};
    const int64_t page_bytes = cache_.page_elements() * DTypeBytes(cache_.dtype);
    if (__builtin_mul_overflow(cache_.pages, page_bytes, &memory_.cache)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cache of ", cache_.pages, " pages of ", page_bytes, " bytes is too large"));
    }
  }
  Carver workspace(nullptr), arrays(nullptr);
  Carve(workspace);
  CarveArrays(arrays);
  memory_.workspace = workspace.used_bytes() + arrays.used_bytes();
  if (config_.has_decoder()) memory_.workspace += StepArrays::BlockBytes(InitialShape());
  return absl::OkStatus();
}

// The shape for which the index arrays of decoder calls (step_) are allocated at load. On a CPU the
// arrays have room for sequences of 512 tokens; longer sequences make them grow, which costs only
// the allocation. On a GPU growing would also invalidate all captured CUDA graphs. There the arrays
// have room for sequences of 8192 tokens. If the table of KV cache slots would then exceed 16 MiB,
// they have room for fewer tokens, but never for fewer than 512. The table is kept small because
// allocating pinned memory takes a fifth of a millisecond per MiB.
StepShape PackedModel::InitialShape() const {
  constexpr int64_t kUsualTokens = 512, kLongTokens = 8192, kMostSlots = int64_t{4} << 20;
  const int64_t slots = limits_.cache_pages * limits_.page_size;
  const bool grows = stream_.backend() == Backend::kCpu;
  const int64_t sequences = limits_.max_step_sequences;
  const int64_t most = grows ? kUsualTokens : std::max(kUsualTokens, kMostSlots / sequences);
  const int64_t tokens = std::min({most, kLongTokens, slots});
  const int64_t source_tokens = std::min({most, limits_.max_encode_tokens, slots});
  StepShape shape{limits_.max_step_tokens, sequences, sequences,
                  limits_.max_step_tokens, tokens,    source_tokens};
  shape.adapters = adapters_ != nullptr;
  return grows ? shape : shape.Rounded(limits_);
}

absl::Status PackedModel::Allocate() {
  QT_RETURN_IF_ERROR(Measure());
  if (config_.has_decoder()) {
    QT_RETURN_IF_ERROR(step_.Reserve(InitialShape()));
  }
  QT_ASSIGN_OR_RETURN(pages_, stream_.Allocate(memory_.cache));
  cache_.data = pages_.data();
  Carver workspace_size(nullptr), arrays_size(nullptr);
  Carve(workspace_size);
  CarveArrays(arrays_size);
  QT_ASSIGN_OR_RETURN(workspace_, stream_.Allocate(workspace_size.used_bytes()));
  QT_ASSIGN_OR_RETURN(arrays_, stream_.AllocatePinned(arrays_size.used_bytes()));
  Carver workspace_carver(workspace_.data()), arrays_carver(arrays_.data());
  Carve(workspace_carver);
  CarveArrays(arrays_carver);
  stream_.CopyH2D(arrays_.data(), arrays_.bytes());
  if (lora_words_.defined() && lora_words_.elements() > 0) {
    const std::vector<char> zeros(static_cast<size_t>(lora_words_.elements()));
    stream_.Write(zeros.data(), lora_words_);
  }
  const int64_t most_ranges = 2 * (limits_.max_encode_tokens / kMinMergedLoraRows) + 1;
  encoder_ranges_.reserve(static_cast<size_t>(most_ranges));
  return stream_.Synchronize();
}

int64_t PackedModel::GemmScratchBytes(const WeightView& w, int64_t rows) const {
  return w.defined() ? LinearScratchBytes(w, rows, stream_) : 0;
}

void PackedModel::Carve(Carver& carver) {
  const int64_t rows = limits_.max_step_tokens;
  if (config_.has_decoder()) {
    x_ = carver.TakeTensor(DType::kF32, {rows, config_.d_model});
    qkv_ = carver.TakeTensor(activations_, {rows, 3 * config_.inner()});
    states_ = carver.TakeTensor(DType::kF32, {rows, config_.d_model});
    next_tokens_ = carver.TakeTensor(DType::kI32, {limits_.max_step_sequences});
    parent_beams_ = carver.TakeTensor(DType::kI32, {limits_.max_step_sequences});
    history_ = carver.TakeTensor(DType::kI32, {limits_.cache_pages * limits_.page_size});
  }
  encoder_qkv_ = carver.TakeTensor(activations_, {limits_.max_encode_tokens, 3 * config_.inner()});
  if (config_.global_block > 0) {
    const int64_t globals = config_.GlobalTokens(limits_.max_encode_tokens);
    globals_.x = carver.TakeTensor(DType::kF32, {globals, config_.d_model});
    globals_.qkv = carver.TakeTensor(activations_, {globals, 3 * config_.inner()});
  }
  normed_ = carver.TakeTensor(activations_, {block_rows_, config_.d_model});
  hidden_ = carver.TakeTensor(activations_, {block_rows_, config_.d_ff});

  int64_t scratch =
      AttentionScratchBytes(std::max(limits_.max_encode_tokens, limits_.max_step_tokens),
                            config_.heads, config_.head_dim, stream_);
  const auto need = [&](int64_t bytes) { scratch = std::max(scratch, bytes); };
  for (const StackWeights* stack : {&weights_.encoder, &weights_.decoder}) {
    for (const LayerWeights& w : stack->layers) {
      for (const WeightView* weight :
           {&w.qkv, &w.attention_out, &w.cross_q, &w.cross_out, &w.ffn_in, &w.ffn_out}) {
        need(GemmScratchBytes(*weight, block_rows_));
      }
    }
  }
  need(GemmScratchBytes(weights_.cross_kv, limits_.max_encode_tokens));
  need(GemmScratchBytes(weights_.classifier_dense, block_rows_));
  need(GemmScratchBytes(weights_.classifier, block_rows_));
  if (weights_.head.defined()) {
    need(LinearScratchBytes(weights_.head, block_rows_, stream_));
    need(TargetLogProbScratchBytes(weights_.head, kBlockRows, kMaxTopLogProbs, stream_));
  }
  scratch_ = carver.TakeTensor(DType::kI8, {scratch});
  CarveLora(carver);
}

// Upper bounds of lora_scratch_ and row_bias_, unless one row or LoraInput::copy needs more. The
// sizes of these buffers limit the number of rows per AddLora call.
constexpr int64_t kLoraScratchBytes = int64_t{64} << 20;
constexpr int64_t kRowBiasElements = int64_t{64} << 20;

void PackedModel::CarveLora(Carver& carver) {
  if (adapters_ == nullptr) return;
  const int64_t rows = std::max(block_rows_, limits_.max_encode_tokens);
  int64_t scratch = 0, row_bias = 0, words = 0;
  for (const auto& [weight, lora] : adapters_->weights()) {
    const int64_t one_row = LoraScratchBytes(lora, 1);
    scratch = std::max({scratch, one_row, std::min(rows * one_row, kLoraScratchBytes)});
    scratch = std::max(scratch, LoraCopyBytes(*weight, stream_));
    words = std::max(words, LoraWordBytes(lora, stream_));
    row_bias = std::max({row_bias, lora.n(), std::min(block_rows_ * lora.n(), kRowBiasElements)});
  }
  lora_scratch_ = carver.TakeTensor(DType::kI8, {scratch});
  lora_words_ = carver.TakeTensor(DType::kI8, {words});
  row_bias_ = carver.TakeTensor(activations_, {row_bias});
}

const LoraWeight* PackedModel::Corrected(const WeightView* w) const {
  return row_adapters_.empty() ? nullptr : adapters_->Find(w);
}

LinearArgs PackedModel::WithLora(LinearArgs args) {
  args.lora = {.weight = Corrected(args.w), .adapters = row_adapters_, .one_adapter = one_adapter_};
  const bool on_gpu = stream_.backend() != Backend::kCpu;
  if (on_gpu && grid_wait_right_.Take(stream_.device().ordinal())) args.lora.words = lora_words_;
  return args;
}

bool PackedModel::CorrectsBeforeActivation(const LinearArgs& args) {
  return (args.w->gated() || args.activation != Activation::kNone) &&
         Corrected(args.w) != nullptr && !SupportsLora(WithLora(args), stream_);
}

// Calls AddLora for blocks of rows, because lora_scratch_ limits the number of rows per call.
void PackedModel::Correct(const AddLoraArgs& args) {
  const int64_t rows = args.x.dim[0];
  const int64_t step = lora_scratch_.elements() / LoraScratchBytes(*args.weight, 1);
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t end = std::min(begin + step, rows);
    AddLoraArgs part = args;
    part.x = args.x.Rows(begin, end);
    part.adapters =
        args.adapters.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    if (args.y.defined()) part.y = args.y.Rows(begin, end);
    if (args.scatter.base != nullptr) part.scatter.row_offset += begin;
    if (args.kv.cache != nullptr) {
      part.kv.slots =
          args.kv.slots.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    }
    part.scratch = lora_scratch_;
    AddLora(part, stream_);
  }
}

// Runs a GEMM that adds LoRA terms before its activation: AddLora writes the terms to row_bias_,
// and the GEMM adds them as LinearArgs::row_bias. Loops over blocks of rows that fit row_bias_.
void PackedModel::GemmWithRowBias(const LinearArgs& args, const AddLoraArgs& lora) {
  const int64_t rows = args.x.dim[0], n = args.w->n();
  QT_CHECK(!args.residual.defined());
  const int64_t step = row_bias_.elements() / n;
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t end = std::min(begin + step, rows);
    LinearArgs part = args;
    part.x = args.x.Rows(begin, end);
    part.y = args.y.Rows(begin, end);
    part.row_bias = Tensor::Dense(row_bias_.data, row_bias_.dtype, {end - begin, n});
    AddLoraArgs corrections = lora;
    corrections.x = lora.x.Rows(begin, end);
    corrections.adapters =
        lora.adapters.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    corrections.y = part.row_bias;
    corrections.overwrite = true;
    Correct(corrections);
    Linear(part, stream_);
  }
}

void PackedModel::Gemm(LinearArgs args, const LayerInputRows* input) {
  args.scratch = scratch_;
  if (use_merged_) args.w = merged_->Find(args.w);
  if (Corrected(args.w) == nullptr) return Linear(args, stream_);
  if (row_ranges_.empty()) return GemmWithRowAdapters(args, input);
  for (const AdapterRange& range : row_ranges_) GemmOfRange(args, input, range);
}

void PackedModel::GemmOfRange(const LinearArgs& args, const LayerInputRows* input,
                              const AdapterRange& range) {
  const auto begin = range.begin, end = range.end;
  LinearArgs part = args;
  part.x = args.x.Rows(begin, end);
  if (args.y.defined()) part.y = args.y.Rows(begin, end);
  if (args.residual.defined()) part.residual = args.residual.Rows(begin, end);
  if (args.scatter.base != nullptr) part.scatter.row_offset += begin;
  QT_CHECK(args.kv.cache == nullptr && !args.x_squares.defined());
  QT_CHECK(!args.next_norm.gamma.defined());
  if (range.adapter == AdapterRange::kNone) return Linear(part, stream_);
  if (range.adapter != AdapterRange::kMixed) {
    LinearArgs merged = part;
    merged.lora = {.weight = Corrected(args.w), .adapter = range.adapter, .copy = lora_scratch_};
    if (SupportsLora(merged, stream_)) return Linear(merged, stream_);
  }
  LayerInputRows rows;
  if (input != nullptr) rows = {input->x.Rows(begin, end), input->gamma, input->beta};
  const std::span<const int32_t> all = row_adapters_;
  row_adapters_ = all.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  GemmWithRowAdapters(part, input == nullptr ? nullptr : &rows);
  row_adapters_ = all;
}

void PackedModel::GemmWithRowAdapters(const LinearArgs& args, const LayerInputRows* input) {
  const LoraWeight* const weight = Corrected(args.w);
  if (const LinearArgs with = WithLora(args); SupportsLora(with, stream_)) {
    return Linear(with, stream_);
  }
  AddLoraArgs lora = {.x = args.x,
                      .norm_gamma = args.norm_gamma,
                      .norm_beta = args.norm_beta,
                      .norm_eps = config_.norm_eps,
                      .weight = weight,
                      .adapters = row_adapters_};
  if (input != nullptr) {
    lora.x = input->x;
    lora.norm_gamma = input->gamma;
    lora.norm_beta = input->beta;
  }
  if (CorrectsBeforeActivation(args)) return GemmWithRowBias(args, lora);
  lora.y = args.y;
  lora.scatter = args.scatter;
  lora.kv = args.kv;
  // For y += x W^T, add the LoRA terms to y before the GEMM. Its epilogue, which may also compute a
  // part of the next norm from y (NormOutput), then sees the complete sum.
  const bool adds_to_y = args.residual.defined();
  if (adds_to_y) {
    QT_CHECK(args.residual.data == args.y.data);
    Correct(lora);
  }
  Linear(args, stream_);
  if (!adds_to_y) Correct(lora);
}

void PackedModel::NormedGemm(const Tensor& gamma, const Tensor& beta, LinearArgs args) {
  const int64_t rows = args.x.dim[0];
  const float eps = config_.norm_eps;
  if (Corrected(args.w) == nullptr && SupportsFusedNorm(args, stream_)) {
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
  Gemm(args);
}

std::pair<StepShape, PackedModel::GraphKind> PackedModel::PrepareStep(DecodeBatch batch) {
  QT_CHECK_LE(static_cast<int64_t>(batch.kv_lens.size()), limits_.max_step_sequences);
  QT_CHECK_LE(static_cast<int64_t>(batch.tokens.size()), limits_.max_step_tokens);
  CheckBatch(batch);
  for (const int32_t adapter : batch.adapters) {
    QT_CHECK(-1 <= adapter && adapter < adapter_slot_count());
  }
  const int32_t adapter = CommonAdapter(batch.adapters);
  const bool merged = merged_ != nullptr && adapter >= 0 && merged_->Use(adapter, 1);
  if (merged) batch.adapters = {};
  StepShape shape = StepShape::Of(batch);
  shape.merged_adapter = merged;
  // In a decoder call of more rows than this, the kernels take longer to execute than the host
  // takes to enqueue them one by one, so a CUDA graph saves nothing.
  constexpr int64_t kMaxPromptRows = 1024;
  GraphKind kind = GraphKind::kNone;
  if (stream_.backend() != Backend::kCpu) {
    if (shape.single()) {
      kind = GraphKind::kStep;
      shape = shape.Rounded(limits_);
    } else if (shape.rows <= kMaxPromptRows) {
      kind = GraphKind::kPrompt;
      shape = shape.RoundedStrides();
    }
  }
  step_.Fill(batch, shape, cache_.pages * cache_.page_size);
  ReorderBeams({.slots = step_.batch().slots,
                .slots_stride = step_.batch().slots_stride,
                .lens = step_.batch().kv_lens,
                .moves = step_.batch().moves,
                .parents = parent_beams_},
               stream_);
  if (captured_block_ != step_.block()) {
    step_graphs_.Clear();
    prompt_graphs_.Clear();
    joint_graphs_.Clear();
    captured_block_ = step_.block();
  }
  return {shape, kind};
}

void PackedModel::ForwardOrLaunch(const StepShape& shape, GraphKind kind) {
  const CudaGraph* graph = nullptr;
  if (kind == GraphKind::kStep) {
    graph = step_graphs_.Use(shape, [this] { return CaptureForward(false); });
  } else if (kind == GraphKind::kPrompt) {
    const DecodeBatch& batch = step_.batch();
    std::vector<int32_t> offsets(batch.offsets.begin(), batch.offsets.end());
    offsets.insert(offsets.end(), batch.group_offsets.begin(), batch.group_offsets.end());
    graph =
        prompt_graphs_.Use({shape, std::move(offsets)}, [this] { return CaptureForward(true); });
  }
  if (graph != nullptr) {
    stream_.device().LaunchGraph(*graph);
  } else {
    Forward();
  }
}

std::unique_ptr<CudaGraph> PackedModel::CaptureForward(bool same_offsets) {
  step_.PlanForCapture(same_offsets);
  return stream_.device().CaptureGraph([this] { Forward(); });
}

Tensor PackedModel::Decode(const DecodeBatch& batch) {
  const auto [shape, kind] = PrepareStep(batch);
  ForwardOrLaunch(shape, kind);
  return states_.Rows(0, static_cast<int64_t>(batch.output_rows.size()));
}

DecodedStep PackedModel::DecodeAndAppend(const DecodeBatch& batch, const AppendedWork& work) {
  const auto [shape, kind] = PrepareStep(batch);
  const Tensor states = states_.Rows(0, static_cast<int64_t>(batch.output_rows.size()));
  if (kind == GraphKind::kStep) {
    const CudaGraph* graph = joint_graphs_.Use({shape, work.key}, [&] {
      step_.PlanForCapture(false);
      return stream_.device().CaptureGraph([&] {
        Forward();
        work.enqueue(states);
      });
    });
    if (graph != nullptr) {
      stream_.device().LaunchGraph(*graph);
      return {states, true};
    }
  }
  ForwardOrLaunch(shape, kind);
  return {states};
}

TokenHistory PackedModel::history() const {
  const DecodeBatch& batch = step_.batch();
  return {history_, batch.slots, batch.slots_stride, batch.kv_lens};
}

void PackedModel::Forward() {
  const int64_t rows = step_.tokens().dim[0];
  row_adapters_ = step_.row_adapters();
  one_adapter_ = step_.shape().one_adapter;
  use_merged_ = step_.shape().merged_adapter;
  const Tensor x = x_.Rows(0, rows);
  Embed({step_.tokens(), step_.positions(), step_.new_slots(), x});
  for (int64_t layer = 0; layer < config_.decoder_layers; ++layer) {
    Layer({.step = true,
           .layer = layer,
           .x = x,
           .positions = step_.positions(),
           .qkv = qkv_.Rows(0, rows),
           .kv = KvDestination(weights_.decoder.layers[layer].qkv, layer)});
    Observe(true, layer, x);
  }
  row_adapters_ = {};
  one_adapter_ = use_merged_ = false;
  const std::span<const int32_t> output_rows = step_.batch().output_rows;
  if (output_rows.empty()) return;
  FinalNorm(weights_.decoder, x, states_.Rows(0, static_cast<int64_t>(output_rows.size())),
            output_rows);
}

Tensor PackedModel::HeadsOf(const Tensor& qkv, QkvPart part) const {
  const int64_t inner = config_.inner(), begin = static_cast<int64_t>(part) * inner;
  return qkv.Columns(begin, begin + inner).SplitLast(config_.head_dim);
}

// Cache destination for K and V of a decoder layer. Unset if the QKV GEMM cannot store K and V
// itself, or if something must be done to them after the GEMM and before they are rounded: rotary
// embedding, or with a cache of kF8 the addition of LoRA terms.
KvOutput PackedModel::KvDestination(const WeightView& qkv, int64_t layer) {
  if (cache_.dtype == DType::kF8 && Corrected(&qkv) != nullptr) return {};
  if (rotary() || !SupportsKvStore(qkv, step_.tokens().dim[0], stream_)) return {};
  return {.cache = &cache_, .layer = layer, .slots = step_.new_slots()};
}

Tensor PackedModel::SelfAttention(const LayerRows& rows) {
  return rows.step ? AttendStep(rows) : AttendInput(rows);
}

// Causal self-attention of a decoder step: every row of the batch in step_ attends to all earlier
// positions of its sequence and to itself.
Tensor PackedModel::AttendStep(const LayerRows& rows) {
  const DecodeBatch& batch = step_.batch();
  const Tensor q = HeadsOf(rows.qkv, QkvPart::kQuery);
  if (rows.kv.cache == nullptr) {
    StoreKv({.k = HeadsOf(rows.qkv, QkvPart::kKey),
             .v = HeadsOf(rows.qkv, QkvPart::kValue),
             .cache = &cache_,
             .layer = rows.layer,
             .slots = step_.new_slots()},
            stream_);
  }
  Attention({.q = q,
             .out = q,
             .q_offsets = batch.offsets,
             .cache = &cache_,
             .layer = rows.layer,
             .slots = batch.slots,
             .slots_stride = batch.slots_stride,
             .kv_lens = batch.kv_lens,
             .causal = true,
             .fresh = FreshKeys::kOwn,
             .bias = &weights_.decoder.layers[rows.layer].bias,
             .scale = AttentionScale(rows.layer),
             .scratch = scratch_},
            stream_);
  return rows.qkv.Columns(0, config_.inner());
}

void PackedModel::Logits(const Tensor& states, const Tensor& logits) {
  QT_CHECK(weights_.head.defined());
  for (int64_t begin = 0; begin < states.dim[0]; begin += block_rows_) {
    const int64_t end = std::min(begin + block_rows_, states.dim[0]);
    Gemm({.x = states.Rows(begin, end),
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
      Gemm({.x = x,
            .w = &weights_.classifier_dense,
            .bias = weights_.classifier_dense_bias,
            .activation = Activation::kTanh,
            .y = dense});
      x = dense;
    }
    Gemm({.x = x,
          .w = &weights_.classifier,
          .bias = weights_.classifier_bias,
          .y = logits.Rows(begin, end)});
  }
}

}  // namespace quintet
