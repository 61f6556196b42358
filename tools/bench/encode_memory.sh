#!/bin/sh
# Peak memory of one long encode by its length (T5-small's shape, f32): it must grow linearly. Figures: docs/measurements.md.
# usage: tools/bench/encode_memory.sh [build folder] [threads]
set -eu
build=${1:-build}
for tokens in 8192 16384 32768 65536; do
  "$build/tools/encode_memory" "$tokens" "${2:-1}"
done
