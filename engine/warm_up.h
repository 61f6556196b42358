// Warms up a GPU at load: runs dummy encoder batches and decoder steps of the sizes that requests
// will need. This loads kernels before the first request and, for shapes without a stored choice,
// measures which GEMM variant is fastest.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/model.h"

namespace quintet {

// Which sizes a warm-up runs. kAll: all sizes to which decoder steps and encoder batches are
// padded; this takes some tenths of a second even if no GEMM has to be measured. kLargest: only the
// two largest sizes of decoder steps and the two largest of encoder batches; most steps and batches
// of a long job have these sizes.
enum class WarmUpShapes : uint8_t { kAll, kLargest };

// Measures GEMM variants with dummy batches and chooses the fastest for each shape. Must be called
// before the first request, because it overwrites the model's hidden states and KV cache. Reads the
// choices for this kind of device from the user's cache directory and stores new ones there
// (kernels/linear/gemm_choices_file.h); errors of these files are only reported to `warn`. Measures
// for at most two seconds; shapes without a choice by then use cuBLASLt's heuristic. Without a
// cache directory it measures nothing, and all shapes use that heuristic. Does nothing on a CPU, or
// if its buffers do not fit into free memory. Returns an error if the device fails.
absl::Status WarmUp(Model* model, WarmUpShapes shapes,
                    absl::FunctionRef<void(absl::string_view)> warn);

}  // namespace quintet
