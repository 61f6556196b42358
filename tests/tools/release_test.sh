#!/bin/sh
# release_test.sh RELEASE_SH: tests the script tools/release.sh, whose path is RELEASE_SH, in a
# small new repository. The package.sh of that repository is a stub that writes a file instead of
# packages.
set -eu
script=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
cd "$root"
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b

fail() {
  echo "FAIL: $*"
  exit 1
}

refuses() {
  if tools/release.sh >output 2>&1; then fail "released, but $1"; fi
  grep -q -- "$2" output || fail "$1: $(cat output)"
  [ ! -e build/release ] || fail "$1, but there is a release"
}

git init -q .
mkdir tools
cp "$script" tools/release.sh
cat >tools/package.sh <<'PACKAGE'
#!/bin/sh
mkdir -p build && echo package >build/quintet_1.2.3_all.deb
PACKAGE
chmod +x tools/package.sh
printf '/build/\n/output\n' >.gitignore
echo 'project(quintet VERSION 1.2.3 LANGUAGES CXX)' >CMakeLists.txt

printf '# Changelog\n\n## 1.2.2, 2026-01-01\n' >CHANGELOG.md
git add . && git commit -qm one
refuses 'without a section' 'expected a section "## 1.2.3, YYYY-MM-DD", got ""'
printf '# Changelog\n\n## 1.2.3, unreleased\n' >CHANGELOG.md
git commit -qam two
refuses 'unreleased' 'got "## 1.2.3, unreleased"'
printf '# Changelog\n\n## 1.2.3, 2026-02-01\n' >CHANGELOG.md
refuses 'with changes' ' M CHANGELOG.md'
git commit -qam three

tools/release.sh >output 2>&1 || fail "$(cat output)"
cp build/release/SHA256SUMS .git/first
(cd build/release && sha256sum --quiet --check SHA256SUMS) || fail 'wrong sums'
names=$(awk '{print $2}' .git/first | xargs)
[ "$names" = 'quintet-1.2.3.tar.gz quintet_1.2.3_all.deb' ] || fail "files: $names"
tar tf build/release/quintet-1.2.3.tar.gz | grep -q '^quintet-1.2.3/CMakeLists.txt$' ||
  fail 'no sources'
tools/release.sh >output 2>&1 || fail "again: $(cat output)"
cmp .git/first build/release/SHA256SUMS || fail 'a second run gives other files'
