#!/usr/bin/env bash
# Builds test programs under sanitizers and runs them, ending with ctest's summary.
#
#   tools/sanitize.sh address|thread [PROGRAM...]
#   tools/sanitize.sh address python
#
# PROGRAM: kernels, models, engine, server, tools, golden or g2p; all by default.
# address: AddressSanitizer and UndefinedBehaviorSanitizer; preset asan, in build-asan/.
# thread: ThreadSanitizer; preset tsan, in build-tsan/.
# python: the extension of the Python package, in build-asan-python/, with the package's tests.
# The environment variable JOBS limits parallel compilations (default: one per core). The packages
# of setup.sh must be installed.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  address) preset=asan ;;
  thread) preset=tsan ;;
  *) sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
shift

# Python is not built with sanitizers, so LD_PRELOAD loads their libraries before it. Leaks are not
# reported, because Python does not free all its memory when it exits.
test_extension() {
  local build=build-asan-python
  cmake --preset asan -B "$build" -DQUINTET_EXTENSION=ON -DBUILD_TESTING=OFF
  cmake --build "$build" --parallel "${JOBS:-$(nproc)}" --target quintet _engine python_package
  local libraries
  libraries=$("${CXX:-c++}" -print-file-name=libasan.so)
  libraries+=" $("${CXX:-c++}" -print-file-name=libubsan.so)"
  LD_PRELOAD=$libraries PYTHONMALLOC=malloc QUINTET_BINARY=$PWD/$build/quintet \
    ASAN_OPTIONS=exitcode=99:detect_leaks=0:detect_stack_use_after_return=0 \
    UBSAN_OPTIONS=exitcode=99:halt_on_error=1:print_stacktrace=1 \
    .venv/bin/python -m pytest tests/python/model_test.py tests/python/package_misuse_test.py
}

if [ "$preset ${1:-}" = "asan python" ]; then
  test_extension
  exit
fi
[ $# -gt 0 ] || set -- kernels models engine server tools golden g2p

cmake --preset "$preset"
cmake --build --preset "$preset" --parallel "${JOBS:-$(nproc)}" --target "${@/%/_test}"
names=$(IFS='|'; echo "$*")
ctest --preset "$preset" --tests-regex "^($names)(_|\$)"
