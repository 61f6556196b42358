#!/usr/bin/env bash
# From a clean clone to the summary of all tests: sets up, builds every target into build/, runs everything with ctest.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/build.sh
ctest --test-dir build --output-on-failure --parallel "$(nproc)" --no-tests=error
