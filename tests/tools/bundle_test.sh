#!/bin/sh
# bundle_test.sh BUNDLE_SH: packs xz, an installed program, together with its shared library
# liblzma, and runs it from the unpacked archive.
set -eu
bundle=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
cd "$root"

fail() {
  echo "FAIL: $*"
  exit 1
}

"$bundle" made/ops.tar.xz "$(command -v xz)" >output
grep -q '^made/ops.tar.xz: 0\.[0-9] MiB, of 40 allowed$' output || fail "size: $(cat output)"
tar xf made/ops.tar.xz
ls ops/lib/liblzma.so.* >/dev/null || fail 'no library of the program'
[ ! -e ops/lib/libc.so.6 ] || fail 'a library of the other machine'
echo words >text
found=$(ops/run sh -c 'command -v xz')
[ "$(readlink -f "$found")" = "$(readlink -f ops/bin/xz)" ] || fail "another program runs: $found"
ops/run xz --stdout text | ops/run xz --decompress | cmp - text ||
  fail 'the packed program does not work'

if "$bundle" ops.tar.xz no/such/program >output 2>&1; then fail 'no program, but no error'; fi
if "$bundle" ops "$(command -v xz)" >output 2>&1; then fail 'not an archive, but no error'; fi
grep -q ARCHIVE output || fail 'no usage'
