// Warms up a GPU at load: runs dummy encoder batches and decoder steps of the sizes that requests
// will need. This measures which GEMM variant is fastest for shapes without a stored choice, and
// loads kernels before the first request.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/model.h"

namespace quintet {

// Which sizes are run: all that steps and encoder batches are padded to, or only the largest ones,
// which are those of a long job. All takes some tenths of a second even if nothing is measured.
enum class WarmUpShapes : uint8_t { kAll, kLargest };

// Must be called before the first request: overwrites the model's hidden states and KV cache. GEMM
// choices for this kind of device are read from the user's cache directory, and new ones are stored
// there (kernels/linear/gemm_choices_file.h). Errors of these files are only reported to `warn`.
// Measuring ends after two seconds: the remaining shapes use cuBLASLt's heuristic, as all shapes do
// without a cache directory. Does nothing on a CPU, or if there is no free memory for the temporary
// buffers. Returns the errors of the device.
absl::Status WarmUp(Model* model, WarmUpShapes shapes,
                    absl::FunctionRef<void(absl::string_view)> warn);

}  // namespace quintet
