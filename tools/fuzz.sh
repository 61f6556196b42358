#!/usr/bin/env bash
# Runs one of tests/fuzz's programs with libFuzzer: builds it with clang 16 into build-fuzz/ and
# starts from its seed corpus. New corpus entries stay in build-fuzz/corpus/NAME; inputs that make
# the program crash, leak, run for 30 s or use 2 GB are written to build-fuzz/findings/. The last
# line of the output is the result as JSON; exits with 1 if such an input was found. Needs Debian's
# packages clang-16 and libclang-rt-16-dev.
# usage: tools/fuzz.sh NAME [SECONDS]
# NAME: safetensors, gguf, text_encoder, adapter, tokenizer_json, sentencepiece, config, request,
# kserve, http_json, http_server or trace_context.
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1:?usage: tools/fuzz.sh NAME [SECONDS]}
seconds=${2:-600}
seeds=tests/fuzz/corpus/$name
if [ ! -d "$seeds" ]; then
  echo "fuzz: no target $name; there are: $(ls tests/fuzz/corpus | tr '\n' ' ')" >&2
  exit 2
fi

cmake -S . -B build-fuzz -G Ninja -DQUINTET_FUZZ=ON \
  -DCMAKE_CXX_COMPILER=clang++-16 -DCMAKE_CXX_FLAGS_RELEASE="-O1 -g1" >&2
cmake --build build-fuzz --target "fuzz_$name" >&2

corpus=build-fuzz/corpus/$name log=build-fuzz/$name.log
mkdir -p "$corpus" build-fuzz/findings
# Turn off AddressSanitizer's check for container overflows, which could report false errors:
# containers are passed to Debian's libraries, which are built without sanitizers and therefore do
# not update the annotations that the check relies on.
export ASAN_OPTIONS=detect_container_overflow=0
status=0
"build-fuzz/tests/fuzz/fuzz_$name" "$corpus" "$seeds" -max_total_time="$seconds" \
  -timeout=30 -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1 \
  -artifact_prefix="build-fuzz/findings/$name-" 2>"$log" || status=$?
[ $status -eq 0 ] || tail -n 60 "$log" >&2

figure() { grep -oP "$1" "$log" | tail -n 1; }
printf '{"target": "%s", "seconds": %s, "executions": %s, ' \
  "$name" "$(figure 'Done \d+ runs in \K\d+' || echo 0)" \
  "$(figure 'number_of_executed_units: \K\d+' || echo 0)"
printf '"edges": %s, "edges_in_program": %s, "findings": %s, "commit": "%s"}\n' \
  "$(figure 'cov: \K\d+')" "$(figure 'modules *\(\K\d+')" "$((status != 0))" \
  "$(git describe --always --dirty --abbrev=10 --exclude='*')"
exit $((status != 0))
