#!/usr/bin/env bash
# Sets up and builds every target in build/ from a clean clone, then runs all tests with ctest.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/build.sh
ctest --test-dir build --output-on-failure --parallel "$(nproc)" --no-tests=error
