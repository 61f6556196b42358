#include "models/model.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"
#include "models/adapters/merge.h"
#include "models/gpt2.h"
#include "models/t5.h"
#include "models/weights/weights.h"

namespace quintet {
namespace {

absl::Status CheckLimit(const char* name, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", value, " is not in [1, ", max, "]"));
}

// Checks that the limits are in ranges that keep every size computed from them within 64 bits and
// every slot number within 32 bits.
absl::Status CheckLimits(const ModelLimits& limits) {
  constexpr int64_t kMaxTokens = int64_t{1} << 24;
  constexpr int64_t kMaxPageSize = 4096;
  const absl::Status statuses[] = {
      CheckLimit("max_encode_tokens", limits.max_encode_tokens, kMaxTokens),
      CheckLimit("max_step_tokens", limits.max_step_tokens, kMaxTokens),
      CheckLimit("max_step_sequences", limits.max_step_sequences, kMaxTokens),
      CheckLimit("page_size", limits.page_size, kMaxPageSize),
      CheckLimit("cache_pages", limits.cache_pages,
                 INT32_MAX / (limits.page_size >= 1 ? limits.page_size : 1)),
  };
  for (const absl::Status& status : statuses) {
    QT_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

// Checks the weight type, cache type and limits of `options` and reads the model's config.
absl::StatusOr<ModelConfig> CheckedConfig(const std::string& directory,
                                          const LoadOptions& options) {
  if (!WeightTypeSupported(options.weights, options.device)) {
    const char* needs = QuantizesInputs(options.weights)       ? "a Hopper GPU (H100, H200)"
                        : options.weights == WeightType::kBF16 ? "a CPU with avx512_bf16 or a GPU"
                                                               : "a GPU";
    return absl::UnimplementedError(
        absl::StrCat("weight type ", WeightTypeName(options.weights), " is not supported on this ",
                     options.device == nullptr ? "CPU" : "GPU", ": it needs ", needs));
  }
  if (options.fp8_cache && ActivationType(options.weights, options.device) == DType::kF32) {
    return absl::InvalidArgumentError(
        absl::StrCat("--cache-dtype: fp8 needs a GPU and activations of bf16 or f16, which ",
                     WeightTypeName(options.weights), " weights on this ",
                     options.device == nullptr ? "CPU" : "GPU", " do not have; use auto"));
  }
  QT_RETURN_IF_ERROR(CheckLimits(options.limits));
  return ReadModelConfig(directory);
}

std::unique_ptr<PackedModel> MakeModel(ModelConfig config, const LoadOptions& options,
                                       SharedWeights weights, ThreadPool* pool) {
  const auto make = config.family == Family::kGpt2 ? MakeGpt2Model : MakeT5Model;
  return make(std::move(config), options.limits, std::move(weights), Stream(pool, options.device));
}

// Returns the weights of a model, which LoadWeights or, with `describe`, DescribeWeights makes.
absl::StatusOr<SharedWeights> WeightsFor(const std::string& directory, const LoadOptions& options,
                                         bool describe, ModelConfig* config, ThreadPool* pool) {
  Adapter merged;
  std::optional<AdapterMerge> merge;
  WeightOptions weight_options = {options.weights, options.device, options.follow_symlinks};
  if (options.merge_adapter) {
    QT_CHECK(options.adapters.size() == 1);
    const auto read = describe ? DescribeAdapter : ReadAdapter;
    QT_ASSIGN_OR_RETURN(merged, read(options.adapters[0].path, *config, options.follow_symlinks));
    merge.emplace(merged);
    weight_options.changes = &*merge;
  }
  const auto load = describe ? DescribeWeights : LoadWeights;
  QT_ASSIGN_OR_RETURN(ModelWeights weights, load(directory, config, weight_options, pool));
  return std::make_shared<const ModelWeights>(std::move(weights));
}

// Makes the model with its weights and adapters. With `describe` their values are neither read nor
// stored (DescribeWeights, AdapterPool::Options).
absl::StatusOr<std::unique_ptr<PackedModel>> MakeLoaded(const std::string& directory,
                                                        const LoadOptions& options, bool describe,
                                                        ThreadPool* pool) {
  QT_ASSIGN_OR_RETURN(ModelConfig config, CheckedConfig(directory, options));
  SharedWeights weights;
  const bool shared = options.replica_of != nullptr && options.device == nullptr;
  if (shared) {
    weights = options.replica_of->weights();
    config = options.replica_of->config();
  } else {
    QT_ASSIGN_OR_RETURN(weights, WeightsFor(directory, options, describe, &config, pool));
  }
  const bool has_adapter = weights->changed;
  std::unique_ptr<PackedModel> model =
      MakeModel(std::move(config), options, std::move(weights), pool);
  model->set_cache_type(CacheType(options));
  if (shared) model->ShareWeights();
  if (!has_adapter) QT_RETURN_IF_ERROR(model->LoadAdapters(options, describe));
  return model;
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& directory,
                                                 const LoadOptions& options, ThreadPool* pool) {
  QT_ASSIGN_OR_RETURN(std::unique_ptr<PackedModel> model,
                      MakeLoaded(directory, options, /*describe=*/false, pool));
  QT_RETURN_IF_ERROR(model->Allocate());
  return model;
}

absl::StatusOr<ModelMemory> MeasureModel(const std::string& directory, const LoadOptions& options,
                                         ThreadPool* pool) {
  QT_ASSIGN_OR_RETURN(std::unique_ptr<PackedModel> model,
                      MakeLoaded(directory, options, /*describe=*/true, pool));
  QT_RETURN_IF_ERROR(model->Measure());
  return model->memory();
}

}  // namespace

absl::StatusOr<AdapterHandle> Model::ReadAdapter(const AdapterSource& source) const {
  return absl::FailedPreconditionError(
      absl::StrCat("adapter ", source.name, ": the model was loaded without adapters"));
}

absl::StatusOr<std::unique_ptr<Model>> Model::Load(const std::string& directory,
                                                   const LoadOptions& options, ThreadPool* pool) {
  return CatchOutOfMemory([&] { return LoadModel(directory, options, pool); });
}

absl::StatusOr<ModelMemory> Model::Measure(const std::string& directory, const LoadOptions& options,
                                           ThreadPool* pool) {
  return CatchOutOfMemory([&] { return MeasureModel(directory, options, pool); });
}

}  // namespace quintet
