// Version and commit of the build, and the compiler and architectures of its CUDA code.
#pragma once

namespace quintet {

// Version of Quintet, from the CMake project.
const char* Version();
// Abbreviated git commit of the build, followed by "-dirty" if files differed from that commit;
// "unknown" if the source was not a git repository.
const char* Commit();
// Version of nvcc and the GPU architectures for which the build has code, for example "13.0.88 for
// sm_90a, compute_80"; "none" for a build without CUDA.
const char* CudaBuild();

}  // namespace quintet
