#!/usr/bin/env bash
# The op tests on a GPU under compute-sanitizer's four tools, each test case in a process of its own, several at once.
#
#   tools/sanitize_gpu.sh [PROGRAM [TOOL...]]     # build/tests/kernels_gpu_test; memcheck racecheck initcheck synccheck
#
# Prints a line for each case that is not clean, then how many were clean, found something, or did not finish. Ends with 0 only
# when all were clean. In the environment: JOBS, processes at once (default: one for every two cores); SECONDS_EACH, after which a
# case counts as not finished (120); LOGS, a folder that keeps each case's output; CASES, a Catch2 filter ("~[cpu]~[sweep]": cases
# tagged [sweep] take too long, and others reach the same kernels).
set -uo pipefail
program=${1:-$(dirname "$0")/../build/tests/kernels_gpu_test}
shift
[ $# -gt 0 ] || set -- memcheck racecheck initcheck synccheck
logs=${LOGS:-$(mktemp -d)}
mkdir -p "$logs"

sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || { echo "compute-sanitizer is not here" >&2; exit 2; }
"$program" --list-test-names-only "${CASES:-~[cpu]~[sweep]}" >"$logs/list"
! grep '^skipped' "$logs/list" || exit 77
# The first line names the GPU.
tail -n +2 "$logs/list" | sed '/^$/d' >"$logs/cases"
[ -s "$logs/cases" ] || { echo "no test cases" >&2; exit 2; }

# Catch2 reads a comma as "or" and brackets as tags.
run_case() {
  local tool=$1 name=$2 log=$3 begin=$SECONDS outcome=clean filter=${2//,/\\,}
  filter=${filter//\[/\\[}
  timeout -k 5 "$SECONDS_EACH" "$sanitizer" --tool "$tool" --error-exitcode 99 "$program" "$filter" >"$log" 2>&1
  case $? in
    0) grep -q 'No tests ran' "$log" && outcome="did not run" ;;
    99) outcome=finding ;;
    124 | 137) outcome="did not finish" ;;
    *) outcome=failed ;;
  esac
  printf '%s\t%s\t%s\t%s\n' "$outcome" "$tool" "$((SECONDS - begin))" "$name"
}
export -f run_case
export program sanitizer SECONDS_EACH=${SECONDS_EACH:-120}

for tool in "$@"; do
  awk -v tool="$tool" -v logs="$logs" '{printf "%s%c%s%c%s/%s-%d.log%c", tool, 0, $0, 0, logs, tool, NR, 0}' "$logs/cases"
done | xargs -0 -n 3 -P "${JOBS:-$((($(nproc) + 1) / 2))}" bash -c 'run_case "$@"' _ >"$logs/outcomes"

grep -v '^clean' "$logs/outcomes" | sort
awk -F '\t' '{n[$2 "\t" $1]++; if ($3 > most[$2]) most[$2] = $3}
  END {for (k in n) {split(k, p, "\t"); printf "%s: %d cases %s; longest case of the tool %d s\n", p[1], n[k], p[2], most[p[1]]}}' "$logs/outcomes" | sort
! grep -qv '^clean' "$logs/outcomes"
