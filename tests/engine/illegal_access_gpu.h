// Causes a real GPU fault for tests: a kernel that writes to an invalid address.
#pragma once

namespace quintet {

// Enqueues the kernel on a CUDA stream. After it has run, the process cannot use the GPU any more.
void QueueIllegalAccess(void* queue);

}  // namespace quintet
