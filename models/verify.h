// Runs a model and its conversion on the same sample input and compares the outputs of every layer.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/linear/linear.h"
#include "kernels/runtime/thread_pool.h"

namespace quintet {

struct StageError {
  // Name of the stage: "encoder layer 0", ..., "encoder", "decoder layer 0", ..., "decoder" or
  // "logits".
  std::string stage;
  double error = 0;  // max |result - source| / max |source| over the stage's values
};

struct VerifyOptions {
  std::string source, result;                    // model directories
  bool follow_symlinks = false;                  // allow symbolic links to the source's files
  WeightType result_weights = WeightType::kF32;  // kI8 for int8; the source always runs in f32
};

// Loads options.source, runs it on fixed sample token ids and frees it; then does the same with
// options.result. Peak memory is that of one model. Returns an error of Model::Load, or
// FAILED_PRECONDITION if the models differ in shape.
absl::StatusOr<std::vector<StageError>> CompareModels(const VerifyOptions& options,
                                                      ThreadPool* pool);

// Upper bound of StageError::error of a correct conversion to weights of type `stored`. Conversions
// to f32 are exact, except that conversions to and from FAT5 multiply scales into the weights; the
// bound for f32 allows for the rounding of these products. For other dtypes the bound is several
// times the error that rounding the weights causes in T5 and GPT-2 models of 2 to 12 layers.
double VerifyTolerance(DType stored);

}  // namespace quintet
