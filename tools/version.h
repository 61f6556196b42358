// Version and commit of the build, and what it was built with.
#pragma once

namespace quintet {

// Version of the CMake project.
const char* Version();
// Abbreviated git commit, with "-dirty" if files differed; "unknown" outside git.
const char* Commit();
// Version of nvcc and the architectures it compiled for, "13.0.88 for sm_90a, compute_80"; "none"
// in a build without CUDA.
const char* CudaBuild();

}  // namespace quintet
