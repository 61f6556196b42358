#!/usr/bin/env bash
# Builds wheels of the Python package quintet-engine that need no compiler and no Debian packages:
#
#   tools/wheel.sh [PYTHON...]     for each Python (default: python3), in build/wheel/
#
# Needs the packages of tools/setup.sh. Prints each wheel with its size and fails if one has more
# than 40 MB. With nvcc in PATH, and unless QUINTET_CUDA=OFF, the wheel runs on NVIDIA GPUs.
# QUINTET_WERROR=ON: warnings are errors. All Pythons share build-wheel/, in which only the
# extension module is compiled for each.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly max_bytes=40000000
# Sets one compiler for all Pythons. Without CC and CXX the build for each Python would use the
# compiler with which that Python was built, and a change of the compiler empties build-wheel/.
export CC=${CC:-cc} CXX=${CXX:-c++}

pythons=("$@")
[ ${#pythons[@]} -gt 0 ] || pythons=(python3)
out=build/wheel
mkdir -p "$out"
rm -f "$out"/*.whl
raw=$(mktemp -d)
trap 'rm -rf "$raw"' EXIT
for python in "${pythons[@]}"; do
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  environment=$PWD/$out/venv-$version
  [ -x "$environment/bin/auditwheel" ] || {
    "$python" -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check --requirement \
      tools/python/requirements.txt
  }
  begin=$SECONDS
  # scikit-build-core empties the build folder if this file names another Python's environment.
  rm -f build-wheel/.skbuild-info.json
  PATH=$environment/bin:$PATH "$environment/bin/python" -m build --wheel --no-isolation \
    --outdir "$raw/$version" -Cbuild-dir=build-wheel -Cinstall.strip=true \
    -Ccmake.define.QUINTET_CUDA="${QUINTET_CUDA:-AUTO}" \
    -Ccmake.define.QUINTET_WERROR="${QUINTET_WERROR:-OFF}" .
  PATH=$environment/bin:$PATH "$environment/bin/auditwheel" repair --strip \
    --plat "manylinux_2_36_$(uname -m)" --wheel-dir "$out" "$raw/$version"/*.whl
  echo "wheel: Python $version took $((SECONDS - begin)) s"
done
for wheel in "$out"/*.whl; do
  bytes=$(stat -c %s "$wheel")
  megabytes=$((bytes / 1000000)).$((bytes / 100000 % 10))
  echo "$wheel: $megabytes MB, of $((max_bytes / 1000000)) allowed"
  [ "$bytes" -le "$max_bytes" ] || exit 1
done
