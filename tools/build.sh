#!/usr/bin/env bash
# Builds TARGET... in build/, or every target if none is given. The first call configures a Release
# build: if it names targets, without tests; otherwise with tests, and warnings are errors.
# QUINTET_WERROR=ON or OFF in the environment of the first call decides instead whether warnings are
# errors. Later calls do not change that, since everything would be compiled again; the first one
# without targets adds the tests. demo.sh and test.sh call this script.
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
