#!/usr/bin/env bash
# Installs the packages, configures a Release build with warnings as errors in build/, and builds
# every target. Called by demo.sh and test.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup.sh
cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DQUINTET_WERROR=ON
cmake --build build
