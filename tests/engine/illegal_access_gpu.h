// A real fault for tests: a kernel that writes where nothing is.
#pragma once

namespace quintet {

// Queues it on a CUDA stream. The process's use of the GPU is over once it has run.
void QueueIllegalAccess(void* queue);

}  // namespace quintet
