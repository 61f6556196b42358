// Checks a checkpoint into which an adapter was merged: every parameter that the adapter changes is
// applied to a sample input, merged and unmerged, W' x and W x + scale * B (A x).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/adapters/adapter.h"
#include "models/verify.h"

namespace quintet {

// Reads the weights of both directories, one block of rows at a time, and computes in
// double precision. StageError::stage is the name of a parameter (models/weights/table.h).
// `follow_symlinks` applies to `source` only. Returns the errors of reading the directories.
absl::StatusOr<std::vector<StageError>> CompareMerged(const std::string& source,
                                                      const Adapter& adapter,
                                                      const std::string& result,
                                                      bool follow_symlinks);

}  // namespace quintet
