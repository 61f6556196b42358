// Runs a model and its conversion on the same sample input and compares what every layer gives.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/linear.h"
#include "kernels/thread_pool.h"

namespace quintet {

struct StageError {
  std::string
      stage;         // "encoder layer 0", .., "encoder", "decoder layer 0", .., "decoder", "logits"
  double error = 0;  // max |result - source| / max |source| over the stage's values
};

struct VerifyOptions {
  std::string source, result;                    // directories
  bool follow_symlinks = false;                  // of the source
  WeightType result_weights = WeightType::kF32;  // kI8 for int8; the source runs in f32
};

// The two models are loaded one after the other, so memory is that of one. Sample ids are the same
// in every run. Errors are those of Model::Load, or FAILED_PRECONDITION when the models have not
// the same shape.
absl::StatusOr<std::vector<StageError>> CompareModels(const VerifyOptions& options,
                                                      ThreadPool* pool);

// What a faithful conversion stays below on every stage. f32 is rounding of scales that FAT5
// conversion multiplies in (else it is 0); the others are several times what rounding weights costs
// in T5 and GPT-2 models of 2 to 12 layers.
double VerifyTolerance(DType stored);

}  // namespace quintet
