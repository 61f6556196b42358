#!/usr/bin/env bash
# Tests the server with the gRPC client of the package kserve from PyPI. The client has a virtual
# environment of its own (build/kserve-client), because the package has many dependencies, some of
# them older than those of the other tests. Needs the binary (tools/build.sh).
# usage: tools/try_kserve.sh
set -euo pipefail
cd "$(dirname "$0")/.."

environment=build/kserve-client
if [ ! -x "$environment/bin/kserve-installed" ]; then
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check kserve==0.21.0 >&2
  cp /bin/true "$environment/bin/kserve-installed"  # last: an incomplete installation is repeated
fi
exec "$environment/bin/python" tests/python/full/kserve_client.py
