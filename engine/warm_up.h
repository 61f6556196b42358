// Shapes that steps and batches will have, run once at load on a GPU: how their products run is
// chosen by measurement where nothing is known of them, and kernels are loaded before a request
// waits for them.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/model.h"

namespace quintet {

// Before the first request: encoder states, keys and values are overwritten. What is known of this
// kind of device comes from the user's cache directory and what is new goes there
// (engine/product_cache.h); where that fails `warn` is told, and nothing else suffers. Measurements
// end after two seconds: shapes left then run as the library suggests, as all do where there is no
// such directory. Does nothing on a CPU, and where no memory is left beside the model's for a
// while. Errors are the device's.
absl::Status WarmUp(Model* model, absl::FunctionRef<void(absl::string_view)> warn);

}  // namespace quintet
