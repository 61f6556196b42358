#!/usr/bin/env bash
# Goes from a clean clone to phonemes: installs packages, builds build/quintet, and pronounces the
# given words (or a few built-in ones) with the model in deploy/models/g2p, first with the command
# line, then with a server and its Python client, as a stream. The demo's own output goes to
# standard output, all other output to standard error.
# usage: tools/demo.sh [WORD...]
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup.sh --demo
tools/build.sh quintet python_package >&2

if [ $# -eq 0 ]; then
  set -- quintet phoneme transformer inference serendipity
fi
words=$(printf '%s\n' "$@" | tr '[:upper:]' '[:lower:]')
phonemes=$(build/quintet generate --model deploy/models/g2p --num-beams 4 <<<"$words")
paste <(echo "$words") <(echo "$phonemes")

python=.venv/bin/python
read -r grpc_port http_port < <($python -c '
import socket
ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(port.getsockname()[1] for port in ports))')
client() {
  local command=$1
  shift
  $python tools/client.py "$command" --target "127.0.0.1:$grpc_port" "$@"
}

build/quintet serve --model g2p=deploy/models/g2p --listen "127.0.0.1:$grpc_port" \
  --http-listen "127.0.0.1:$http_port" --drain-delay 0 &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
for _ in {1..100}; do
  client health >/dev/null 2>&1 && break
  kill -0 "$server"  # ends the demo if the server has ended
  sleep 0.1
done

first=$(head -n 1 <<<"$words")
echo
echo "The server's answer to \"$first\" as it comes:"
client stream --output json "$first" | sed -n 's/.*"chunk": \(.*\)}$/\1/p'
echo
echo "All words by the client:"
client stream <<<"$words"
echo
echo "One line of its metrics:"
$python -c "
import urllib.request
text = urllib.request.urlopen('http://127.0.0.1:$http_port/metrics', timeout=10).read().decode()
name = 'quintet_generation_tokens_total'
print(next(line for line in text.splitlines() if line.startswith(name)))"

kill -TERM "$server"
wait "$server"
echo
echo "The server has drained and ended with exit code $?."
