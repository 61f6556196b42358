#!/usr/bin/env bash
# Drives one of tests/fuzz's programs with libFuzzer: builds it with clang 16 into build-fuzz/ and starts from its seed corpus. What it
# learns stays in build-fuzz/corpus/NAME, inputs that crash, leak, hang for 10 s or take 2 GB in build-fuzz/findings/. Ends with 1 when
# there is one. Needs Debian's packages clang-16 and libclang-rt-16-dev.
# usage: tools/fuzz.sh safetensors|tokenizer_json|sentencepiece|config|request [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1:?usage: tools/fuzz.sh NAME [SECONDS]}
seconds=${2:-600}
if [ ! -f "tests/fuzz/$name.cc" ] || [ ! -d "tests/fuzz/corpus/$name" ]; then
  echo "fuzz: no target $name; there are: $(ls tests/fuzz/corpus | tr '\n' ' ')" >&2
  exit 2
fi

cmake -S . -B build-fuzz -G Ninja -DQUINTET_FUZZ=ON -DCMAKE_CXX_COMPILER=clang++-16 -DCMAKE_CXX_FLAGS_RELEASE="-O1 -g1" >&2
cmake --build build-fuzz --target "fuzz_$name" >&2

mkdir -p "build-fuzz/corpus/$name" build-fuzz/findings
# Debian's libraries are built without sanitizers, so containers that cross over to them are not marked in full.
export ASAN_OPTIONS=detect_container_overflow=0
exec build-fuzz/tests/fuzz/fuzz_"$name" "build-fuzz/corpus/$name" "tests/fuzz/corpus/$name" \
  -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1 \
  -artifact_prefix="build-fuzz/findings/$name-"
