#!/usr/bin/env bash
# Installs the Debian packages, and into .venv/ the Python packages, that the build, the demo and
# all tests need. If everything is installed, does nothing and needs no network. The compiler is
# g++, or the one that the variable CXX names (clang++-16, g++-13, ...).
#
#   tools/setup.sh                everything
#   tools/setup.sh --demo         what tools/demo.sh needs: no packages of tests
#   tools/setup.sh --build-only   what the build of the product needs: no Python packages either
set -euo pipefail

packages=(
  g++ cmake ninja-build pkg-config git
  libabsl-dev libprotobuf-dev protobuf-compiler nlohmann-json3-dev
  libgrpc++-dev libssl-dev protobuf-compiler-grpc prometheus-cpp-dev libboost-dev
  libhwy-dev libcli11-dev libspdlog-dev zlib1g-dev libzstd-dev python3-dev
)
case "${1:-}" in
  --build-only) ;;
  --demo) packages+=(python3-venv) ;;
  "")
    # In the next two lines, libdnnl-dev is for a benchmark. The other packages are for tests: a
    # framework, programs that the tests run, and programs that read the files of deploy/ (for
    # tests/deploy).
    packages+=(python3-venv catch2 xz-utils libdnnl-dev openssl binutils curl)
    packages+=(haproxy prometheus systemd)
    # The packages in the next line are needed by the tests of the Debian packages, the manual pages
    # and the completion scripts.
    packages+=(dpkg-dev file groff-base zsh fish)
    ;;
  *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
if [ -n "${CXX:-}" ] && ! command -v "$CXX" >/dev/null; then
  packages+=("${CXX/clang++/clang}")
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
  # Keep Debian from starting the services haproxy and prometheus, both now and at every boot.
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
# Use `if`, not `[ ... ] && install_packages || true`: set -e does not apply on the left of ||, so a
# failed installation would not end the script.
if [ ${#missing[@]} -gt 0 ]; then
  install_packages "${missing[@]}"
fi
case "${1:-}" in
  --demo) "$(dirname "$0")/python.sh" --client ;;
  "") "$(dirname "$0")/python.sh" ;;
esac
echo "setup: everything is installed" >&2
