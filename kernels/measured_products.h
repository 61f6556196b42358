// How the products of a GPU run fastest, by measurement. One engine thread, as the device.
//
// Another way to multiply may sum in another order: a choice is part of what a bf16 or f16 result
// depends on (f32 products have one way alone and no choice). So choices are made while a model
// loads and never later: a process that has loaded gives the same bits again and again, and
// processes that begin with the same choices, from a file (engine/product_cache.h), agree. Without
// one, two processes may choose differently, since measured times differ.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/device.h"
#include "kernels/product_choices.h"

namespace quintet {

// Runs `work` and waits for it. Products of shapes that are multiplied there for the first time,
// and of which ProductChoicesOf knows nothing, run in each way that the library offers, and the
// quickest becomes the choice; once `budget_us` is used up the library's first way does, so that
// what is chosen does not change at the next load. Their results are wrong: for loading alone.
// RESOURCE_EXHAUSTED: there is no memory beside them, of twice the second-level cache.
absl::Status MeasureProducts(Device& device, int64_t budget_us, absl::FunctionRef<void()> work);
// The choices that products follow, and for what kind of device they are true: one line that names
// it, its driver and the library.
ProductChoices& ProductChoicesOf(Device& device);
const std::string& DeviceKind(const Device& device);

}  // namespace quintet
