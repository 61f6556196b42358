#!/usr/bin/env bash
# Installs the packages for build and tests on Debian 12 and the Python packages into .venv/; with
# --build-only only the packages for the build. Does nothing, without network, if all are installed.
set -euo pipefail

packages=(
  g++ cmake ninja-build pkg-config git ccache xz-utils
  libabsl-dev libprotobuf-dev protobuf-compiler nlohmann-json3-dev
  libgrpc++-dev libssl-dev protobuf-compiler-grpc prometheus-cpp-dev libboost-dev
  zlib1g-dev libzstd-dev libdnnl-dev libhwy-dev libcli11-dev libspdlog-dev catch2
)
if [ "${1:-}" != --build-only ]; then
  # The programs that read the files of deploy/, for tests/deploy.
  packages+=(python3-venv openssl binutils haproxy prometheus systemd)
  # For the Debian packages, their manual pages and completions.
  packages+=(dpkg-dev file groff-base zsh fish)
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  as_root=(sudo)
fi

install_packages() {
  echo "setup: installing $*" >&2
  if [ ${#as_root[@]} -gt 0 ] && ! command -v sudo >/dev/null; then
    echo "setup: run as root, or install these packages first: $*" >&2
    exit 1
  fi
  # Keep Debian from starting haproxy and prometheus as services, now and at every boot.
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" install -m 755 /dev/stdin /usr/sbin/policy-rc.d
    trap '"${as_root[@]}" rm /usr/sbin/policy-rc.d' EXIT
  fi
  "${as_root[@]}" apt-get update -qq >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "$@" >&2
  local package
  for package in "$@"; do
    case $package in
      haproxy | prometheus) "${as_root[@]}" systemctl disable --quiet "$package" ;;
    esac
  done
}

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
# Use plain ifs: left of || a failing step would not end the script.
if [ ${#missing[@]} -gt 0 ]; then
  install_packages "${missing[@]}"
fi
if [ "${1:-}" != --build-only ]; then
  "$(dirname "$0")/python.sh"
fi
echo "setup: everything is installed" >&2
