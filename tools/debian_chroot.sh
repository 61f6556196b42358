#!/usr/bin/env bash
# Runs a command in a bare Debian: a chroot that mmdebstrap makes, from the mirror that this
# machine's apt uses, with the machine's DNS, CA certificates, and compiler, proxy and pip settings.
# Needs root, and 8 GB in /var/tmp; removes everything at its end.
#
#   tools/debian_chroot.sh SUITE PACKAGES FOLDER COMMAND...
#
# SUITE: bookworm or trixie. PACKAGES: Debian packages beyond apt's, separated by commas. FOLDER: is
# copied to /root/quintet, in which the command runs.
set -euo pipefail
this=$(realpath "$0")

if [ $# -lt 4 ]; then
  sed -n '2,9s/^# \{0,1\}//p' "$this" >&2
  exit 2
fi
if ! command -v mmdebstrap >/dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap
fi

# The script calls itself in a new mount namespace and makes all mounts there. The namespace and its
# mounts end with its last process. At the end, and after an interrupt, all its processes are
# killed, so that no folder of the host is still mounted in the chroot; then the chroot is removed.
if [ -z "${QUINTET_CHROOT:-}" ]; then
  QUINTET_CHROOT=$(mktemp --directory "/var/tmp/quintet-$1.XXXXXX")
  export QUINTET_CHROOT
  unshare --mount --propagation private --pid --fork --kill-child --mount-proc "$this" "$@" &
  child=$!
  trap 'pkill -KILL --parent $child || true; wait $child || true
        rm -rf --one-file-system "$QUINTET_CHROOT"' EXIT
  trap 'exit 130' INT TERM
  wait $child
  exit
fi
root=$QUINTET_CHROOT suite=$1 packages=$2 folder=$3
shift 3

mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' |
  sed -n 1p)
if [ -z "$mirror" ]; then
  echo "debian_chroot: apt has no index of Debian's packages: run apt-get update" >&2
  exit 1
fi
mapfile -t apt_options < <(apt-config dump --format '%f "%v";%n' |
  grep -E '^Acquire::(https?::[^"]*Proxy|Check-[^ ]*) ')
mmdebstrap --quiet --variant=apt --include="$packages" "${apt_options[@]/#/--aptopt=}" \
  "$suite" "$root" "$mirror"

mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mkdir -p "$root/etc/ssl/certs"
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  [ ! -e "$file" ] || cp --dereference "$file" "$root$file"
done
cp -a "$folder" "$root/root/quintet"
mapfile -t settings < <(env | grep -iE '^(CC|CXX|QUINTET_WERROR|PIP_[A-Z_]*|[a-z]*_proxy)=')
chroot "$root" env -i HOME=/root PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
  "${settings[@]}" sh -c 'cd /root/quintet && exec "$@"' sh "$@"
