#!/usr/bin/env bash
# Builds test programs under sanitizers and runs them, ending with ctest's summary.
#
#   tools/sanitize.sh address|thread [PROGRAM...]
#
# PROGRAM: kernels, models, engine, server, tools, golden or g2p; all by default.
# address: AddressSanitizer and UndefinedBehaviorSanitizer; preset asan, in build-asan/.
# thread: ThreadSanitizer; preset tsan, in build-tsan/.
# The environment variable JOBS limits parallel compilations (default: one per core). The packages
# of setup.sh must be installed.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  address) preset=asan ;;
  thread) preset=tsan ;;
  *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
shift
[ $# -gt 0 ] || set -- kernels models engine server tools golden g2p

cmake --preset "$preset"
cmake --build --preset "$preset" --parallel "${JOBS:-$(nproc)}" --target "${@/%/_test}"
names=$(IFS='|'; echo "$*")
ctest --preset "$preset" --tests-regex "^($names)(_|\$)"
