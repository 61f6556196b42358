// Measures which cuBLASLt algorithm is the fastest for each GEMM shape on a GPU. Only the engine
// thread may call the functions of this header.
//
// Different algorithms may sum in a different order, so a choice affects bf16 and f16 results (f32
// GEMMs have only one algorithm). Choices are therefore made while a model loads and never later:
// one process always computes the same bits, and processes that start with the same choices from a
// file (kernels/linear/gemm_choices_file.h) agree. Without such a file, two processes may choose
// differently, because measured times differ.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/linear/gemm_choices.h"
#include "kernels/runtime/device.h"

namespace quintet {

// Runs `work` and waits for it. If a GEMM shape that first runs in `work` has no choice in
// GemmAlgorithmChoicesOf(device), every algorithm that cuBLASLt proposes for it is timed, and the
// fastest becomes its choice. After `budget_us` microseconds no further shape is timed: its choice
// is cuBLASLt's first proposal. That choice is recorded, too, so that it stays the same at the next
// load. Results computed in `work` are wrong, because timed GEMMs run several times: call this
// function only while loading. Returns RESOURCE_EXHAUSTED if there is no memory for a buffer of
// twice the size of the L2 cache.
absl::Status AutotuneGemms(Device& device, int64_t budget_us, absl::FunctionRef<void()> work);
// GemmAlgorithmChoicesOf returns the choices that GEMMs on this device use. DeviceKind returns the
// kind of device for which these choices are valid: one line that names the GPU and the versions of
// its driver and of cuBLASLt.
GemmAlgorithmChoices& GemmAlgorithmChoicesOf(Device& device);
const std::string& DeviceKind(const Device& device);

}  // namespace quintet
