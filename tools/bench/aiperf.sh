#!/usr/bin/env bash
# Runs AIPerf from PyPI against the HTTP API: streamed completions of the shipped model, with its
# own tokenizer, so that nothing is downloaded from a model hub. AIPerf has a virtual environment of
# its own (build/aiperf), because it has about 120 dependencies. Starts and stops the server. Writes
# AIPerf's summary to OUT/aiperf.json; its other files stay in build/aiperf/run.
# usage: tools/bench/aiperf.sh [OUT]
# QUINTET_BINARY: the program, build/quintet unless set. CONCURRENCY, REQUESTS: of the load.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=${1:-tools/bench/results}
environment=build/aiperf
binary=${QUINTET_BINARY:-build/quintet}
if [ ! -x "$environment/bin/aiperf-installed" ]; then
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check aiperf==0.13.0 >&2
  cp /bin/true "$environment/bin/aiperf-installed" # last: an incomplete installation is repeated
fi

free_port() {
  python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])'
}
api=127.0.0.1:$(free_port)
health=127.0.0.1:$(free_port)
"$binary" serve --model deploy/models/g2p --listen "127.0.0.1:$(free_port)" \
  --http-listen "$health" --http-api-listen "$api" --drain-delay 0 >&2 &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true' EXIT
timeout 60 sh -c "until '$binary' health --http-listen '$health' 2>/dev/null; do sleep 0.2; done"

rm -rf "$environment/run"
HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 "$environment/bin/aiperf" profile \
  --model g2p --url "http://$api" --endpoint-type completions --streaming \
  --tokenizer deploy/models/g2p \
  --concurrency "${CONCURRENCY:-16}" --request-count "${REQUESTS:-500}" \
  --synthetic-input-tokens-mean 12 --output-tokens-mean 16 \
  --extra-inputs ignore_eos:true \
  --artifact-dir "$environment/run" --ui none >&2
mkdir -p "$out"
cp "$(find "$environment/run" -name 'profile_export_aiperf.json' | head -n 1)" "$out/aiperf.json"
echo "$out/aiperf.json"
