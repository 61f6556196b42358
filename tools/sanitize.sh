#!/usr/bin/env bash
# Builds test programs under sanitizers and runs them, ending with ctest's summary.
#
#   tools/sanitize.sh address|thread [PROGRAM...]
#
# PROGRAM: kernels, models, engine, server, tools, golden or g2p; all by default.
# address: AddressSanitizer and UndefinedBehaviorSanitizer, in build-asan/.
# thread: ThreadSanitizer, in build-tsan/.
# The environment variable JOBS limits parallel compilations (default: one per core). The packages
# of setup.sh must be installed.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  address) sanitizers=address,undefined build=build-asan ;;
  thread) sanitizers=thread build=build-tsan ;;
  *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
shift
[ $# -gt 0 ] || set -- kernels models engine server tools golden g2p

# Without optimisation the kernels would take hours. Instrumented code causes warnings that do not
# concern the source.
# CPU only: these sanitizers do not see a GPU's memory.
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1 \
  -DQUINTET_SANITIZE="$sanitizers" -DQUINTET_WERROR=OFF -DCMAKE_CUDA_COMPILER=NOTFOUND
cmake --build "$build" --parallel "${JOBS:-$(nproc)}" --target "${@/%/_test}"

# A finding ends the program with an exit code that no test expects.
export ASAN_OPTIONS=exitcode=99:detect_stack_use_after_return=1
export UBSAN_OPTIONS=exitcode=99:halt_on_error=1:print_stacktrace=1
TSAN_OPTIONS=exitcode=99:halt_on_error=1:ignore_noninstrumented_modules=1
export TSAN_OPTIONS+=:suppressions=$PWD/tests/sanitize/tsan.supp
names=$(IFS='|'; echo "$*")
ctest --test-dir "$build" --output-on-failure --no-tests=error --tests-regex "^($names)(_|\$)"
