// Which build this is.
#pragma once

namespace quintet {

extern const char kVersion[];  // of the CMake project
const char*
Commit();  // abbreviated git commit, "-dirty" appended when files differed; "unknown" outside git

}  // namespace quintet
