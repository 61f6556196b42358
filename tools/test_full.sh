#!/usr/bin/env bash
# Builds everything (tools/build.sh), then runs the tests that tools/test.sh leaves out because they
# need root, containers, a browser or minutes of load.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/build.sh
tools/try_images.sh
tools/wheel.sh
tools/try_wheel.sh build/wheel/*.whl
tools/try_kserve.sh
tools/try_page.sh
tools/try_ray.sh
