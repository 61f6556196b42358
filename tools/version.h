// Which build this is.
#pragma once

namespace quintet {

const char* Version();  // of the CMake project
const char*
Commit();  // abbreviated git commit, "-dirty" appended when files differed; "unknown" outside git

}  // namespace quintet
