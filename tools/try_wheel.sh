#!/usr/bin/env bash
# Installs each wheel of tools/wheel.sh into a clean virtual environment, without a compiler or any
# other program in PATH, and runs the README's example and the tests of the Python package there.
#
#   tools/try_wheel.sh WHEEL...
#
# A wheel for CPython 3.N is tried with python3.N; one without that Python is an error. Needs a
# package index for numpy, grpcio, protobuf and the packages of the tests.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for wheel in "$@"; do
  version=$(basename "$wheel" | sed -n 's/.*-cp3\([0-9]*\)-cp3.*/3.\1/p')
  python=$(command -v "python$version") || { echo "try_wheel: no python$version" >&2; exit 1; }
  venv=$work/$version
  begin=$(date +%s)
  "$python" -m venv "$venv"
  clean=(env -i "HOME=$work" "PATH=$venv/bin" LANG=C.UTF-8)
  "${clean[@]}" pip install --quiet --disable-pip-version-check --only-binary :all: "$wheel"
  "${clean[@]}" python -c '
import quintet
with quintet.Model("deploy/models/g2p") as model:
    assert model.generate("phoneme", num_beams=4).text == "F OW1 N IY0 M"
'
  echo "try_wheel: $(basename "$wheel"): installed and run in $(($(date +%s) - begin)) s"
  site=$("$venv/bin/python" -c 'import os, quintet; print(os.path.dirname(quintet.__file__))')
  for file in "$site"/_engine*.so "$site/bin/quintet"; do
    echo "$(basename "$file"): $(ldd "$file" | awk '{print $1}' | tr '\n' ' ')"
    ! ldd "$file" | grep 'not found'
    # Nothing beyond glibc and the C++ runtime comes from the system.
    ldd "$file" | awk '$3 ~ /^\// && $3 !~ /quintet_engine.libs/ {print $1}' |
      { ! grep -vE '^(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so|linux-vdso|/lib)'; }
  done
  "${clean[@]}" pip install --quiet --disable-pip-version-check pytest tqdm prometheus_client
  "${clean[@]}" "QUINTET_BINARY=$venv/bin/quintet" QUINTET_PACKAGE=installed python -m pytest -q \
    -p no:cacheprovider tests/python/model_test.py tests/python/package_misuse_test.py \
    tests/python/package_client_test.py
  "${clean[@]}" quintet --version
done
