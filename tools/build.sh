#!/usr/bin/env bash
# Builds TARGET... in build/, or every target. The first call configures a Release build: for
# targets alone without tests, for every target with them and with warnings as errors. The variable
# QUINTET_WERROR (ON or OFF) overrides the latter. Later calls keep the choice, since a change would
# compile everything again. Called by demo.sh and test.sh.
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
