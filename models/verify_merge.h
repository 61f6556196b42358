// Checks a checkpoint into which an adapter was merged: every parameter that the adapter changes is
// applied to a sample input, merged and unmerged, W' x and W x + scale * B (A x).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/adapters/adapter.h"
#include "models/verify.h"

namespace quintet {

// For each parameter W that `adapter` changes, compares W x of `result` with that of `source` plus
// `adapter`, in double precision, for a sample x. StageError::stage is the parameter's name.
// `follow_symlinks` applies to `source` only. If a directory cannot be read, returns that error.
absl::StatusOr<std::vector<StageError>> CompareMerged(const std::string& source,
                                                      const Adapter& adapter,
                                                      const std::string& result,
                                                      bool follow_symlinks);

}  // namespace quintet
