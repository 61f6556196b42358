#!/usr/bin/env bash
# Builds TARGET... in build/, or every target. The first call configures a Release build. If it
# names targets, tests are left out; if not, tests are included and warnings are errors. The
# variable QUINTET_WERROR (ON or OFF) decides instead whether warnings are errors. Later calls keep
# that choice, since a change would compile everything again. Called by demo.sh and test.sh.
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
