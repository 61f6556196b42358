#!/usr/bin/env bash
# Creates .venv/ with the packages of tools/requirements.txt, for tools/client.py and tests/python.
# Does nothing, without network, if .venv/ is up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

cmp -s tools/requirements.txt .venv/requirements.txt && exit 0
echo "setup: installing the Python packages of tools/requirements.txt into .venv/" >&2
python3 -m venv --clear .venv
.venv/bin/pip install --quiet --disable-pip-version-check --requirement tools/requirements.txt >&2
cp tools/requirements.txt .venv/requirements.txt  # last, so that an incomplete .venv is rebuilt
