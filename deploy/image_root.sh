#!/usr/bin/env bash
# Makes the root folder of a container image: a program, the packages of the shared libraries that
# it loads, and models. Run it as root on Debian. Packages are extracted without running their
# maintainer scripts (as by `mmdebstrap --variant=extract`); the image therefore needs no shell.
#
#   deploy/image_root.sh PROGRAM ROOT [MODEL_DIRECTORY...]
set -euo pipefail

if [ $# -lt 2 ]; then
  sed -n '2,6s/^# \?//p' "$0" >&2
  exit 2
fi
program=$1
root=$2
shift 2

# Prints the package that owns library $1. /lib is a link to /usr/lib, and dpkg may have recorded
# the file under either path; therefore both are looked up.
owner() {
  local package
  package=$(dpkg-query -S "$1" "/usr$1" "${1#/usr}" 2>/dev/null | head -n 1 | cut -d: -f1 || true)
  if [ -z "$package" ]; then
    echo "image_root: no package owns $1" >&2
    exit 1
  fi
  echo "$package"
}

libraries=$(ldd "$program" | awk '$3 ~ /^\// {print $3}')
packages=$(for library in $libraries; do owner "$library"; done | sort -u)

# apt takes the list of installed packages from the status file. Here that file is /dev/null: apt
# then believes that no package is installed, and downloads all dependencies of $packages, too.
downloads=$(mktemp -d)
trap 'rm -rf "$downloads"' EXIT
mkdir "$downloads/partial"
apt-get update -qq
# shellcheck disable=SC2086  # $packages is unquoted, so that each package is one argument
apt-get install -y -qq --no-install-recommends --download-only \
  -o Dir::State::status=/dev/null -o Dir::Cache::archives="$downloads" \
  -o APT::Sandbox::User=root $packages

mkdir -p "$root"/{etc,models,tmp,proc,sys,dev,usr/bin,usr/lib,usr/lib64,usr/local/bin,usr/sbin}
mkdir -p "$root/var/lib/dpkg/status.d"
chmod 1777 "$root/tmp"
for folder in bin lib lib64 sbin; do
  ln -s "usr/$folder" "$root/$folder"
done
for package in "$downloads"/*.deb; do
  dpkg-deb --fsys-tarfile "$package" | tar -x -C "$root" --keep-directory-symlink
  # Vulnerability scanners read an image's list of packages from its dpkg database or, if it has
  # none as here, from the files in status.d.
  dpkg-deb -f "$package" >"$root/var/lib/dpkg/status.d/$(dpkg-deb -f "$package" Package)"
done
find "$root/usr/share/doc" -type f ! -name copyright -delete
rm -rf "$root"/usr/share/{lintian,man} "$root"/usr/lib/*/gconv
cp --dereference /etc/os-release "$root/etc/os-release"
echo 'quintet:x:10001:10001::/nonexistent:/usr/sbin/nologin' >"$root/etc/passwd"
echo 'quintet:x:10001:' >"$root/etc/group"

strip -o "$root/usr/local/bin/$(basename "$program")" "$program"
for model in "$@"; do
  cp -r "$model" "$root/models/"
done
