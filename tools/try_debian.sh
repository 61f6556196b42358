#!/usr/bin/env bash
# Runs tools/demo.sh (twice) and tools/test.sh in a bare Debian, with warnings as errors. Prints the
# seconds and CPU seconds that each run took. mmdebstrap makes a chroot of Debian's packages, from
# the mirror that this machine's apt uses; HEAD is cloned into it. The chroot has the machine's DNS,
# CA certificates, and proxy and pip settings. Needs root, and 8 GB in /var/tmp; removes everything
# at its end.
#
#   tools/try_debian.sh SUITE
#
# SUITE: bookworm or trixie. The variable CXX chooses the compiler: CXX=clang++-16, CXX=g++-13.
set -euo pipefail
this=$(realpath "$0")
cd "$(dirname "$this")/.."

if [ $# -eq 0 ]; then
  sed -n '2,10s/^# \{0,1\}//p' "$this" >&2
  exit 2
fi
suite=$1
if ! command -v mmdebstrap >/dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap
fi

# The script calls itself in a new mount namespace and makes all mounts there. The namespace and its
# mounts end with its last process. At the end, and after an interrupt, all its processes are
# killed, so that no folder of the host is still mounted in the chroot; then the chroot is removed.
if [ $# -eq 1 ]; then
  root=$(mktemp --directory "/var/tmp/quintet-$suite.XXXXXX")
  unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
    "$this" "$suite" "$root" &
  child=$!
  trap 'pkill -KILL --parent $child || true; wait $child || true
        rm -rf --one-file-system "$root"' EXIT
  trap 'exit 130' INT TERM
  wait $child
  exit
fi
root=$2

mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' |
  sed -n 1p)
if [ -z "$mirror" ]; then
  echo "try_debian: apt has no index of Debian's packages: run apt-get update" >&2
  exit 1
fi
mapfile -t apt_options < <(apt-config dump --format '%f "%v";%n' |
  grep -E '^Acquire::(https?::[^"]*Proxy|Check-[^ ]*) ')
mmdebstrap --quiet --variant=apt --include=ca-certificates,git "${apt_options[@]/#/--aptopt=}" \
  "$suite" "$root" "$mirror"

mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  [ ! -e "$file" ] || cp --dereference "$file" "$root$file"
done
git -c safe.directory='*' clone --quiet --depth 1 "file://$PWD" "$root/root/quintet"

mapfile -t settings < <(env | grep -iE '^(CC|CXX|PIP_[A-Z_]*|[a-z]*_proxy)=')
inside() {
  chroot "$root" env -i HOME=/root PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    QUINTET_WERROR=ON "${settings[@]}" "$@"
}
results=()
TIMEFORMAT='%0R %0U %0S'
for script in demo.sh demo.sh test.sh; do
  { time inside "/root/quintet/tools/$script" 2>&3; } 3>&2 2>"$root/root/time"
  read -r real user system <"$root/root/time"
  results+=("$real s, $((user + system)) CPU s: tools/$script")
done
echo
compiler=$(inside "${CXX:-g++}" --version | sed -n 1p)
printf 'try_debian: %s, %s cores, %s, commit %s\n' "$suite" "$(nproc)" "$compiler" \
  "$(git -c safe.directory='*' describe --always --abbrev=10 --exclude='*')"
printf '%s\n' "${results[@]}"
