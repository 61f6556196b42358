#!/usr/bin/env bash
# From a clean clone to phonemes: sets up, builds every target into build/, and pronounces the given words (or a few of our own)
# with the model in deploy/models/g2p. Only the words and their phonemes go to standard output.
# usage: tools/demo.sh [WORD...]
set -euo pipefail
cd "$(dirname "$0")/.."

tools/build.sh >&2

if [ $# -eq 0 ]; then
  set -- quintet phoneme transformer inference serendipity
fi
words=$(printf '%s\n' "$@" | tr '[:upper:]' '[:lower:]')
phonemes=$(build/quintet generate --model deploy/models/g2p --num-beams 4 <<<"$words")
paste <(echo "$words") <(echo "$phonemes")
