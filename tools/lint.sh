#!/usr/bin/env bash
# Checks layout and spelling of every tracked source: clang-format (C++, CUDA), ruff format
# (Python), codespell, and lines of at most 100 columns. With --fix it formats the files instead.
# The versions are pinned in tools/requirements.txt; ctest runs this script as "lint".
set -euo pipefail
cd "$(dirname "$0")/.."

fix=${1:-}
bin=.venv/bin
# Excludes third-party files, generated tables and recorded data.
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
[ "$failed" -eq 0 ] && echo "lint: ${#files[@]} files, no finding"
exit "$failed"
