#!/usr/bin/env bash
# Runs tools/demo.sh (twice) and tools/test.sh in a bare Debian (tools/debian_chroot.sh), on a clone
# of HEAD and with warnings as errors. Prints the seconds and CPU seconds that each run took.
#
#   tools/try_debian.sh SUITE
#
# SUITE: bookworm or trixie. The variable CXX chooses the compiler: CXX=clang++-16, CXX=g++-13.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -ne 1 ]; then
  sed -n '2,7s/^# \{0,1\}//p' tools/try_debian.sh >&2
  exit 2
fi
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
git -c safe.directory='*' clone --quiet --depth 1 "file://$PWD" "$work/quintet"

cat >"$work/try.sh" <<'SCRIPT'
set -euo pipefail
results=()
TIMEFORMAT='%0R %0U %0S'
for script in demo.sh demo.sh test.sh; do
  { time "tools/$script" 2>&3; } 3>&2 2>/root/time
  read -r real user system </root/time
  results+=("$real s, $((user + system)) CPU s: tools/$script")
done
echo
printf 'try_debian: %s, %s cores, %s, commit %s\n' "$1" "$(nproc)" \
  "$("${CXX:-g++}" --version | sed -n 1p)" \
  "$(git describe --always --abbrev=10 --exclude='*')"
printf '%s\n' "${results[@]}"
SCRIPT
QUINTET_WERROR=ON tools/debian_chroot.sh "$1" ca-certificates,git "$work/quintet" \
  bash -c "$(<"$work/try.sh")" bash "$1"
