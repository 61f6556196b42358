#!/usr/bin/env bash
# From a clean clone, or after demo.sh, to the summary of all tests: installs packages, builds every
# target in build/, and runs ctest.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup.sh
tools/build.sh
ctest --test-dir build --output-on-failure --parallel "$(nproc)" --no-tests=error
