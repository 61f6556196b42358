#include "models/verify.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/model.h"

namespace quintet {
namespace {

// Offsets of two source sequences (29 and 12 tokens) and two target sequences (24 and 9). T5's
// default position buckets are logarithmic from distance 8 in the encoder and 16 in the decoder, so
// these sequences are long enough to use exact and logarithmic buckets in both stacks.
constexpr int32_t kSourceOffsets[] = {0, 29, 41};
constexpr int32_t kTargetOffsets[] = {0, 24, 33};
constexpr int64_t kSourceTokens = 41, kTargetTokens = 33;
constexpr int64_t kPageSize = 16, kSlotsPerSequence = 32;

struct Stage {
  std::string name;
  std::vector<float> values;
};

std::vector<float> Copy(const Tensor& x) {
  std::vector<float> values;
  for (int64_t r = 0; r < x.dim[0]; ++r) {
    const float* row = x.f32() + r * x.stride[0];
    values.insert(values.end(), row, row + x.dim[1]);
  }
  return values;
}

// Pseudo-random token ids; a seed gives the same ids in every run.
std::vector<int32_t> SampleIds(int64_t n, int64_t vocab, uint32_t seed) {
  std::vector<int32_t> ids(n);
  uint64_t state = seed;
  for (int32_t& id : ids) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    id = static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab));
  }
  return ids;
}

// Runs one model on the sample token ids and records the output of every stage.
class SampleRun {
 public:
  explicit SampleRun(Model* model) : model_(model), config_(model->config()) {
    model_->set_observer([this](const LayerOutput& layer) {
      stages_.push_back(
          {absl::StrCat(layer.decoder ? "decoder" : "encoder", " layer ", layer.layer),
           Copy(layer.x)});
    });
  }
  ~SampleRun() { model_->set_observer(nullptr); }

  std::vector<Stage> Run() {
    Tensor states;
    if (config_.has_encoder()) {
      Encode();
      states = model_->EncodedStates();
      stages_.push_back({"encoder", Copy(states)});
    }
    if (config_.has_decoder()) {
      states = Decode();
      stages_.push_back({"decoder", Copy(states)});
    }
    Head(states);
    return std::move(stages_);
  }

 private:
  static int32_t SourceSlot(int64_t sequence) { return sequence * kSlotsPerSequence; }
  static int32_t TargetSlot(int64_t sequence) { return (2 + sequence) * kSlotsPerSequence; }

  void Encode() {
    const std::vector<int32_t> ids = SampleIds(kSourceTokens, config_.vocab, 1);
    model_->BeginEncode({.tokens = ids, .offsets = kSourceOffsets});
    while (!model_->EncodeSlice(1 << 20)) {
    }
  }

  Tensor Decode() {
    std::vector<int32_t> ids = SampleIds(kTargetTokens, config_.vocab, 2);
    std::vector<int32_t> slots(2 * kSlotsPerSequence), source_slots(2 * kSlotsPerSequence);
    for (int64_t s = 0; s < 2; ++s) {
      const int64_t at = s * kSlotsPerSequence;
      std::iota(slots.begin() + at, slots.begin() + at + kSlotsPerSequence, TargetSlot(s));
      std::iota(source_slots.begin() + at, source_slots.begin() + at + kSlotsPerSequence,
                SourceSlot(s));
      if (!config_.has_encoder()) continue;
      if (config_.decoder_start_id >= 0) ids[kTargetOffsets[s]] = config_.decoder_start_id;
      model_->ProjectCross(
          model_->EncodedStates().Rows(kSourceOffsets[s], kSourceOffsets[s + 1]), 0,
          std::span(source_slots).subspan(at, kSourceOffsets[s + 1] - kSourceOffsets[s]), {});
    }
    std::vector<int32_t> output_rows(kTargetTokens);
    std::iota(output_rows.begin(), output_rows.end(), 0);
    const int32_t kv_lens[] = {kTargetOffsets[1], kTargetOffsets[2] - kTargetOffsets[1]};
    const int32_t groups[] = {0, 1, 2};
    const int32_t source_lens[] = {kSourceOffsets[1], kSourceOffsets[2] - kSourceOffsets[1]};
    DecodeBatch batch;
    batch.tokens = ids;
    batch.offsets = kTargetOffsets;
    batch.kv_lens = kv_lens;
    batch.slots = slots.data();
    batch.slots_stride = kSlotsPerSequence;
    if (config_.has_encoder()) {
      batch.group_offsets = groups;
      batch.source_slots = source_slots.data();
      batch.source_slots_stride = kSlotsPerSequence;
      batch.source_lens = source_lens;
    }
    batch.output_rows = output_rows;
    return model_->Decode(batch);
  }

  void Head(const Tensor& states) {
    const bool language_model = config_.head == Head::kLanguageModel;
    if (config_.head == Head::kNone || config_.head == Head::kEncoder) return;
    const int64_t columns = language_model ? config_.vocab : config_.labels;
    std::vector<float> values(states.dim[0] * columns);
    const Tensor logits = Tensor::F32(values.data(), {states.dim[0], columns});
    if (language_model) {
      model_->Logits(states, logits);
    } else {
      model_->Classify(states, logits);
    }
    stages_.push_back({"logits", std::move(values)});
  }

  Model* model_;
  const ModelConfig& config_;
  std::vector<Stage> stages_;
};

absl::StatusOr<std::vector<Stage>> RunSample(const std::string& directory, LoadOptions options,
                                             ThreadPool* pool) {
  options.limits.max_encode_tokens = kSourceTokens;
  options.limits.max_step_tokens = kTargetTokens;
  options.limits.max_step_sequences = 2;
  options.limits.page_size = kPageSize;
  options.limits.cache_pages = 4 * kSlotsPerSequence / kPageSize;
  QT_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Model::Load(directory, options, pool));
  return SampleRun(model.get()).Run();
}

double RelativeError(const std::vector<float>& result, const std::vector<float>& source) {
  double difference = 0, largest = 0;
  for (size_t i = 0; i < source.size(); ++i) {
    const double d = std::abs(static_cast<double>(result[i]) - source[i]);
    if (!std::isfinite(d)) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, d);
    largest = std::max(largest, std::abs(static_cast<double>(source[i])));
  }
  return difference == 0 ? 0 : difference / largest;
}

}  // namespace

absl::StatusOr<std::vector<StageError>> CompareModels(const VerifyOptions& options,
                                                      ThreadPool* pool) {
  LoadOptions load;
  load.follow_symlinks = options.follow_symlinks;
  QT_ASSIGN_OR_RETURN(std::vector<Stage> source, RunSample(options.source, load, pool));
  load.follow_symlinks = false;
  load.weights = options.result_weights;
  QT_ASSIGN_OR_RETURN(std::vector<Stage> result, RunSample(options.result, load, pool));
  if (source.size() != result.size()) {
    return absl::FailedPreconditionError("the two models have different layers");
  }
  std::vector<StageError> errors;
  for (size_t i = 0; i < source.size(); ++i) {
    const Stage &a = result[i], &b = source[i];
    if (a.name != b.name || a.values.size() != b.values.size()) {
      return absl::FailedPreconditionError(
          absl::StrCat(b.name, ": the two models have different shapes"));
    }
    errors.push_back({b.name, RelativeError(a.values, b.values)});
  }
  return errors;
}

double VerifyTolerance(DType stored) {
  switch (stored) {
    case DType::kF32:
      return 1e-5;
    case DType::kF16:
      return 5e-3;
    case DType::kBF16:
      return 2e-2;
    case DType::kF8:
      return 5e-1;
    default:
      return 2e-1;
  }
}

}  // namespace quintet
