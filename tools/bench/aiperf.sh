#!/usr/bin/env bash
# Runs AIPerf from PyPI against the HTTP API: streamed completions of the shipped model, with its
# own tokenizer, so that nothing is downloaded from a model hub. AIPerf has a virtual environment of
# its own (build/aiperf), because it has about 120 dependencies. Starts and stops the server. Writes
# AIPerf's figures, with the machine and the command, to OUT/aiperf.json; its other files stay in
# build/aiperf/run.
# usage: tools/bench/aiperf.sh [OUT]
# QUINTET_BINARY: the program, build/quintet unless set. CONCURRENCY: requests in flight, 16 unless
# set. REQUESTS: their total number, 500 unless set.
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
# HF_HUB_OFFLINE is not set, because AIPerf would then reject a folder as the tokenizer. Instead
# HF_ENDPOINT is an address where no hub listens.
HF_ENDPOINT=http://127.0.0.1:1 "$environment/bin/aiperf" profile \
  --model g2p --url "http://$api" --endpoint-type completions --streaming \
  --tokenizer "$PWD/deploy/models/g2p" \
  --concurrency "${CONCURRENCY:-16}" --request-count "${REQUESTS:-500}" \
  --synthetic-input-tokens-mean 12 --output-tokens-mean 16 \
  --extra-inputs ignore_eos:true --use-server-token-count \
  --artifact-dir "$environment/run" --ui none >&2
mkdir -p "$out"
python3 - "$environment/run/profile_export_aiperf.json" "$out/aiperf.json" "$binary" <<'END'
import json, os, pathlib, platform, subprocess, sys, time

summary, out, binary = sys.argv[1:]
figures = json.loads(pathlib.Path(summary).read_text())
version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
processors = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
cpu = [line for line in processors if line.startswith("model name")]
command = figures.get("run_info", figures.get("input_config", {})).get("cli_command", "")
report = {
    "name": "aiperf",
    "what": "AIPerf: streamed completions through the HTTP API, g2p, f32 on a CPU",
    "date": time.strftime("%Y-%m-%d", time.gmtime()),
    "conditions": {
        "version": version.split()[1],
        "commit": version.split()[2].strip("()"),
        "cpu": cpu[0].split(":", 1)[1].strip() if cpu else "unknown",
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    },
    "command": command.replace(os.getcwd() + "/", ""),
    "figures": {
        name: {key: round(number, 4) if isinstance(number, float) else number
               for key, number in value.items()}
        for name, value in figures.items()
        if isinstance(value, dict) and "unit" in value
    },
}
pathlib.Path(out).write_text(json.dumps(report, indent=1) + "\n")
END
echo "$out/aiperf.json"
