#!/usr/bin/env bash
# Builds TARGET... in build/, or every target if none is given. The first call configures a Release
# build: without tests if it names targets; otherwise with tests, and warnings are errors. If the
# variable QUINTET_WERROR is set (ON or OFF), it decides whether warnings are errors. Later calls do
# not change whether warnings are errors, since everything would be compiled again. demo.sh and
# test.sh call this script.
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
