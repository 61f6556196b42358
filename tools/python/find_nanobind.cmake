# Sets QUINTET_BUILD_EXTENSION, and finds Python and nanobind if it is true. In a build
# with a sanitizer AUTO means OFF, because the sanitizer's library would have to be loaded before
# Python.
set(QUINTET_BUILD_EXTENSION OFF)
if(QUINTET_EXTENSION STREQUAL AUTO AND (QUINTET_SANITIZE OR QUINTET_FUZZ))
  message(STATUS "Python extension: not built with sanitizers or fuzzers")
elseif(QUINTET_EXTENSION)
  set(required "")
  if(NOT QUINTET_EXTENSION STREQUAL AUTO)
    set(required REQUIRED)
  endif()
  if(NOT SKBUILD AND EXISTS ${QUINTET_PYTHON})
    set(Python_EXECUTABLE ${QUINTET_PYTHON})
  endif()
  find_package(Python 3.10 COMPONENTS Interpreter Development.Module ${required})
  if(Python_FOUND)
    execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir ERROR_QUIET
                    OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_ROOT)
    unset(nanobind_DIR CACHE)  # of another Python that used this build folder
    find_package(nanobind CONFIG ${required})
  endif()
  if(nanobind_FOUND)
    set(QUINTET_BUILD_EXTENSION ON)
  else()
    message(STATUS "Python extension: not built (no Python 3.10 headers, or no nanobind in "
                   "${QUINTET_PYTHON}: run tools/setup.sh)")
  endif()
endif()
