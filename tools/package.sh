#!/usr/bin/env bash
# Builds the Debian packages from the working tree, for the Debian release of this machine:
# quintet_VERSION_ARCH.deb and quintet-model-g2p_VERSION_all.deb in build/. Prints their paths.
# Checks them with lintian if that is installed.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup.sh
# Use the date of the commit as the build time, so that the same commit gives the same packages.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release >&2
cmake --build build --target quintet >&2
rm -f build/quintet*.deb
(cd build && cpack --config CPackConfig.cmake) >&2

packages=(build/quintet*.deb)
if command -v lintian >/dev/null; then
  lintian --fail-on error "${packages[@]}" >&2
else
  echo "package: lintian is not installed: the packages were not checked" >&2
fi
printf '%s\n' "${packages[@]}"
