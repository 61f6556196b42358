// Version and commit of the build.
#pragma once

namespace quintet {

// Version of the CMake project.
const char* Version();
// Abbreviated git commit, with "-dirty" if files differed; "unknown" outside git.
const char* Commit();

}  // namespace quintet
