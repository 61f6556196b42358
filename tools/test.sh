#!/usr/bin/env bash
# Runs all tests from a clean clone, or after demo.sh: installs packages, builds every target in
# build/, and runs ctest, whose summary is the end of the output.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup.sh
tools/build.sh
ctest --test-dir build --output-on-failure --parallel "$(nproc)" --no-tests=error
