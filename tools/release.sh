#!/usr/bin/env bash
# Makes the files of a release in build/release/: the source archive, the Debian packages for this
# machine's Debian release, and SHA256SUMS. The version is that of CMakeLists.txt; CHANGELOG.md must
# have a dated section for it, and the working tree must have no changes. Uploads nothing. A second
# run makes identical files.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "release: $*" >&2
  exit 1
}

version=$(sed -n 's/^project(quintet VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
[ -n "$version" ] || fail "CMakeLists.txt: expected project(quintet VERSION ...)"
section=$(grep -F -m 1 "## $version" CHANGELOG.md || true)
date='[0-9]{4}-[0-9]{2}-[0-9]{2}'
[[ $section =~ ^"## $version, "$date$ ]] ||
  fail "CHANGELOG.md: expected a section \"## $version, YYYY-MM-DD\", got \"$section\""
changes=$(git status --porcelain)
[ -z "$changes" ] || fail "the working tree has changes; commit or remove them first:
$changes"

tools/package.sh
rm -rf build/release
mkdir -p build/release
git archive --format=tar.gz --prefix="quintet-$version/" \
  --output="build/release/quintet-$version.tar.gz" HEAD
mv build/quintet*.deb build/release/
cd build/release
sha256sum -- * >SHA256SUMS.new
mv SHA256SUMS.new SHA256SUMS
cat SHA256SUMS
