#!/usr/bin/env bash
# Runs the tests that tools/test.sh leaves out, since they need root, containers or minutes of load.
# Builds first (tools/build.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

tools/build.sh
tools/try_images.sh
tools/wheel.sh
tools/try_wheel.sh build/wheel/*.whl
