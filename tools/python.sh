#!/usr/bin/env bash
# Installs Python packages into .venv/, which it creates if necessary. Installs the packages of
# tools/requirements.txt, which tools/client.py needs, and those of tests/requirements.txt, which
# the tests need; with --client only the former. If .venv/ is up to date, does nothing and needs no
# network.
# usage: tools/python.sh [--client]
set -euo pipefail
cd "$(dirname "$0")/.."

files=(tools/requirements.txt)
[ "${1:-}" = --client ] || files+=(tests/requirements.txt)
for file in "${files[@]}"; do
  installed=.venv/${file/\//-}  # a copy of the file that was installed
  cmp -s "$file" "$installed" && continue
  echo "setup: installing the Python packages of $file into .venv/" >&2
  [ "$file" != tools/requirements.txt ] || python3 -m venv --clear .venv
  .venv/bin/pip install --quiet --disable-pip-version-check --requirement "$file" >&2
  cp "$file" "$installed"  # last, so that an incomplete installation is repeated
done
