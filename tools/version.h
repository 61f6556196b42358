// Version and commit of the build, and what it was built with.
#pragma once

namespace quintet {

// Version of Quintet, from the CMake project.
const char* Version();
// Abbreviated git commit of the build, with "-dirty" if files differed from it; "unknown" outside
// git.
const char* Commit();
// Version of nvcc and the GPU architectures of the build, e.g. "13.0.88 for sm_90a, compute_80";
// "none" without CUDA.
const char* CudaBuild();

}  // namespace quintet
