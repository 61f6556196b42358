#!/usr/bin/env bash
# Installs what the build and the tests need on Debian 12, Python packages into .venv/ included. Does nothing, and needs no network,
# where all of it is there already.
set -euo pipefail

packages=(
  g++ cmake ninja-build pkg-config git ccache
  libabsl-dev libprotobuf-dev protobuf-compiler nlohmann-json3-dev
  libgrpc++-dev protobuf-compiler-grpc prometheus-cpp-dev libcivetweb-dev
  libdnnl-dev libhwy-dev libcli11-dev libspdlog-dev catch2
  python3-venv openssl
)

install() {
  echo "setup: installing $*" >&2
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "setup: run as root, or install these packages first: $*" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
"$(dirname "$0")/python.sh"
echo "setup: everything is installed" >&2
