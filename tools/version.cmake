# Writes OUTPUT, a C++ file with the version and commit of the source tree SOURCE and the CUDA
# version of the build. Runs at every build. Does not touch the file if its contents would not
# change.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=10 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)  # a container build has no .git
  set(commit $ENV{QUINTET_COMMIT})
endif()
if(NOT commit)
  set(commit unknown)
endif()
set(text "#include \"tools/version.h\"

namespace quintet {

const char* Version() { return \"${VERSION}\"; }
const char* Commit() { return \"${commit}\"; }
const char* CudaBuild() { return \"${CUDA}\"; }

}  // namespace quintet
")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
