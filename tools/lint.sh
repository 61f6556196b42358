#!/usr/bin/env bash
# Checks every tracked source: clang-format (C++, CUDA), ruff format (Python), codespell, lines of
# at most 100 columns, and functions of at most 60 lines in the product's C++ and CUDA. ctest runs
# it as "lint". The versions are pinned in tools/requirements.txt.
#
#   tools/lint.sh               checks
#   tools/lint.sh --fix         formats the files instead
#   tools/lint.sh --tidy [BASE] runs clang-tidy (.clang-tidy) on the C++ sources that differ from
#                               the commit BASE (default HEAD; "all": on every source)
#
# --tidy needs Debian's package clang-tidy (version 14) and a build in build/; it takes about 5 s of
# CPU time per file.
set -euo pipefail
cd "$(dirname "$0")/.."

# Lists the C++ sources that differ from the commit $1. For a header, lists the sources that include
# it, too.
changed_sources() {
  if [ "$1" = all ]; then
    git ls-files '*.cc'
    return
  fi
  local file
  git diff --name-only --diff-filter=d "$1" -- '*.cc' '*.h' | while read -r file; do
    case $file in
    *.h) git grep -lF "#include \"$file\"" -- '*.cc' || true ;;
    *) echo "$file" ;;
    esac
  done
}

tidy() {
  local built
  built=$(sed -n "s#^ *\"file\": \"$PWD/\(.*\)\".*#\1#p" build/compile_commands.json | sort -u)
  mapfile -t sources < <(changed_sources "$1" | grep -vE '^tests/|/unicode_tables\.cc$' | sort -u |
    comm -12 - <(echo "$built"))
  [ "${#sources[@]}" -eq 0 ] ||
    printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy -p build --quiet
  echo "clang-tidy: ${#sources[@]} files, no finding"
}

if [ "${1:-}" = --tidy ]; then
  tidy "${2:-HEAD}"
  exit
fi

fix=${1:-}
bin=.venv/bin
# All tracked files except third-party files, generated tables and recorded data.
mapfile -t files < <(git ls-files |
  grep -vE '\.(json|svg|safetensors|model)$' |
  grep -vE '^(deploy/models|tests/data|tests/golden/cases|tests/fuzz/corpus)/' |
  grep -vE '^proto/(grpc|google)/|/unicode_tables\.cc$|^LICENSE$')
select_files() { printf '%s\n' "${files[@]}" | grep -E "$1"; }

failed=0
report() {
  echo "lint: $1" >&2
  failed=1
}

if [ "$fix" = --fix ]; then
  select_files '\.(cc|h|cu|cuh)$' | xargs "$bin/clang-format" -i
  select_files '\.py$' | xargs "$bin/ruff" format --quiet
fi
select_files '\.(cc|h|cu|cuh)$' | xargs "$bin/clang-format" --dry-run --Werror ||
  report "clang-format: run tools/lint.sh --fix"
select_files '\.py$' | xargs "$bin/ruff" format --quiet --check ||
  report "ruff format: run tools/lint.sh --fix"
printf '%s\n' "${files[@]}" | xargs "$bin/codespell" ||
  report "codespell: correct the word, or add a name to pyproject.toml"
long=$(select_files '\.(cc|h|cu|cuh|proto|py|sh|cmake)$' |
  xargs awk 'length > 100 { print FILENAME ":" FNR ": " length " columns" }')
if [ -n "$long" ]; then
  echo "$long" >&2
  report "lines of more than 100 columns"
fi
# Two CUDA kernels may have more than 60 lines, because their parts share many registers.
functions=$(select_files '\.(cc|h|cu|cuh)$' | grep -v '^tests/' |
  xargs "$bin/lizard" -l cpp --warnings_only -L 60 -C 1000 -a 100 |
  grep -vE '::(SplitKKernel|ByteGemvKernel) has ' || true)
if [ -n "$functions" ]; then
  echo "$functions" >&2
  report "functions of more than 60 lines"
fi
[ "$failed" -eq 0 ] && echo "lint: ${#files[@]} files, no finding"
exit "$failed"
