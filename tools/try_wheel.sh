#!/usr/bin/env bash
# Installs wheels of tools/wheel.sh in environments without any file of the build, and uses them.
#
#   tools/try_wheel.sh WHEEL...
#   tools/try_wheel.sh --debian SUITE WHEEL
#
# The first form makes a clean virtual environment for each wheel, with no compiler or other
# program in PATH, and runs the README's example and the package's tests. A wheel for CPython 3.N
# is tried with python3.N; one without that Python is an error. The second form runs the example in
# a bare Debian (tools/debian_chroot.sh) with python3 and python3-venv. Needs a package index for
# numpy, grpcio, protobuf and the packages of the tests.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A program that runs the example of the README and checks its results.
sed -n '/^    import quintet/,/^$/s/^    //p' README.md >"$work/example.py"
cat >>"$work/example.py" <<'PYTHON'
assert model.generate("phoneme", num_beams=4).text == "F OW1 N IY0 M"
assert model.encode(["one", "two"]).shape == (2, 256)
PYTHON

if [ "$1" = --debian ]; then
  mkdir -p "$work/quintet/deploy/models"
  cp -r deploy/models/g2p "$work/quintet/deploy/models"
  cp "$3" "$work/example.py" "$work/quintet"
  tools/debian_chroot.sh "$2" python3,python3-venv "$work/quintet" bash -euc '
    if command -v cc gcc; then exit 1; fi
    begin=$SECONDS
    python3 -m venv /root/venv
    /root/venv/bin/pip install --quiet --disable-pip-version-check --only-binary :all: ./*.whl
    /root/venv/bin/python example.py
    /root/venv/bin/quintet --version
    echo phoneme | /root/venv/bin/quintet generate --model deploy/models/g2p --quiet
    . /etc/os-release
    echo "try_wheel: $(python3 --version), $PRETTY_NAME: installed, run in $((SECONDS - begin)) s"
  '
  exit
fi

mapfile -t settings < <(env | grep -iE '^(PIP_[A-Z_]*|[a-z]*_proxy)=')
for wheel in "$@"; do
  version=$(basename "$wheel" | sed -n 's/.*-cp3\([0-9]*\)-cp3.*/3.\1/p')
  python=$(command -v "python$version") || { echo "try_wheel: no python$version" >&2; exit 1; }
  venv=$work/$version
  begin=$SECONDS
  "$python" -m venv "$venv"
  clean=(env -i "HOME=$work" "PATH=$venv/bin" LANG=C.UTF-8 "${settings[@]}")
  "${clean[@]}" pip install --quiet --disable-pip-version-check --only-binary :all: "$wheel"
  "${clean[@]}" python "$work/example.py"
  echo "try_wheel: $(basename "$wheel"): installed and run in $((SECONDS - begin)) s"
  site=$("$venv/bin/python" -c 'import os, quintet; print(os.path.dirname(quintet.__file__))')
  for file in "$site"/_engine*.so "$site/bin/quintet"; do
    echo "$(basename "$file"): $(ldd "$file" | awk '{print $1}' | tr '\n' ' ')"
    # The file must find all its shared libraries. The only system libraries that it may use are
    # glibc and the C++ runtime.
    if ldd "$file" | grep 'not found' || ldd "$file" |
      awk '$3 ~ /^\// && $3 !~ /quintet_engine.libs/ {print $1}' |
      grep -vE '^lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so'; then
      echo "try_wheel: $file needs the libraries above, which are not in the wheel" >&2
      exit 1
    fi
  done
  "${clean[@]}" pip install --quiet --disable-pip-version-check \
    pytest tqdm prometheus_client sentencepiece grpcio-tools mypy huggingface_hub aiohttp
  "${clean[@]}" "QUINTET_BINARY=$venv/bin/quintet" QUINTET_PACKAGE=installed python -m pytest -q \
    -p no:cacheprovider tests/python/{model_*,package_*,types,directories}_test.py
  "${clean[@]}" quintet --version
done
