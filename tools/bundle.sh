#!/usr/bin/env bash
# Packs programs of a build for a machine that has a GPU but not this system's packages:
#
#   tools/bundle.sh NAME PROGRAM...      for example: tools/bundle.sh ops build/tests/kernels_gpu_test
#
# Leaves bundle/NAME with bin/, lib/ and `run`, and prints its size. `bundle/NAME/run PROGRAM ARGUMENTS...` runs a packed
# program, or a tool on one (run compute-sanitizer bundle/NAME/bin/PROGRAM). lib/ holds the
# shared libraries except those that belong to the other machine: the C and C++ runtimes, which must be at least as new there,
# and CUDA's.
set -euo pipefail
readonly max_mib=40

if [ $# -lt 2 ]; then
  sed -n '2,9s/^# \?//p' "$0" >&2
  exit 2
fi
source_dir=$(cd "$(dirname "$0")/.." && pwd)
bundle=$source_dir/bundle/$1
shift
rm -rf "${bundle:?}/bin" "$bundle/lib" "$bundle/run"
mkdir -p "$bundle/bin" "$bundle/lib"

theirs='^(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|stdc\+\+|gcc_s|gomp|cu.*|nv.*))\.so'
for program in "$@"; do
  strip -o "$bundle/bin/$(basename "$program")" "$program"
  ldd "$program" | awk '$3 ~ /^\// {print $3}' | while read -r library; do
    [[ $(basename "$library") =~ $theirs ]] || cp -L "$library" "$bundle/lib/"
  done
  if missing=$(ldd "$program" | grep 'not found' | grep -vE '^\s*lib(cu|nv)'); then
    echo "$program: $missing" >&2
    exit 1
  fi
done

cat >"$bundle/run" <<'RUN'
#!/usr/bin/env bash
# Runs a command in which the programs of bin/ have their names and find their libraries.
here=$(cd "$(dirname "$0")" && pwd)
export PATH=$here/bin:$PATH
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}:/usr/local/cuda/lib64
exec "$@"
RUN
chmod +x "$bundle/run"

kib=$(du -sk "$bundle/bin" "$bundle/lib" | awk '{sum += $1} END {print sum}')
echo "bundle/$(basename "$bundle"): $((kib / 1024)).$((kib % 1024 * 10 / 1024)) MiB"
if [ "$kib" -gt $((max_mib * 1024)) ]; then
  echo "more than $max_mib MiB" >&2
  exit 1
fi
