#!/usr/bin/env bash
# Builds TARGET... in build/, or every target if none is given. The first call configures a Release
# build. If that call names no targets, the build includes the tests, and warnings are errors. If it
# names targets, the tests are left out and warnings are allowed. QUINTET_WERROR=ON or OFF in the
# environment of the first call overrides whether warnings are errors. Later calls keep it: a change
# would recompile everything. The first call without targets adds the tests.
# demo.sh and test.sh call this script.
# usage: tools/build.sh [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."

testing=ON
[ $# -eq 0 ] || testing=OFF
if [ ! -e build/build.ninja ]; then
  cmake --preset release -DBUILD_TESTING=$testing "-DQUINTET_WERROR=${QUINTET_WERROR:-$testing}"
elif [ $testing = ON ] && ! grep -q '^BUILD_TESTING:BOOL=ON$' build/CMakeCache.txt; then
  cmake --preset release -DBUILD_TESTING=ON
fi
cmake --build build --target "${@:-all}"
