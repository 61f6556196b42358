// Checks a checkpoint into which an adapter was merged. For every parameter that the adapter
// changes, compares W' x with W x + scale * B (A x), where W' is the merged parameter, W the base
// model's parameter, and x is a sample input.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/adapters/adapter.h"
#include "models/verify.h"

namespace quintet {

// For each parameter that `adapter` changes, compares W' x, where W' is read from `result`, with
// W x + scale * B (A x), where W is read from `source` or is a tensor of modules_to_save. x is a
// sample input; sums are in double precision. StageError::stage is the parameter's name.
// `follow_symlinks` applies to `source` only. If a directory cannot be read, returns that error.
absl::StatusOr<std::vector<StageError>> CompareMerged(const std::string& source,
                                                      const Adapter& adapter,
                                                      const std::string& result,
                                                      bool follow_symlinks);

}  // namespace quintet
