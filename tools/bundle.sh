#!/usr/bin/env bash
# Packs programs of a build for a machine that has a GPU but not this system's packages:
#
#   tools/bundle.sh ARCHIVE PROGRAM...
#
# For example: tools/bundle.sh ops.tar.xz build/tests/kernels_gpu_test
# Writes one archive, prints its size and fails when that is more than 40 MiB. On the other machine
#
#   tar xf ops.tar.xz && ops/run kernels_gpu_test ARGUMENTS...
#
# runs a packed program, or a tool on one (ops/run compute-sanitizer ops/bin/PROGRAM). bin/ holds
# the stripped programs, lib/ their shared libraries. CUDA's libraries and the C and C++ runtimes
# are not packed: the other machine must have them, the runtimes at least as new as here.
set -euo pipefail
readonly max_mib=40

if [ $# -lt 2 ] || [[ $1 != *.tar.xz ]]; then
  sed -n '2,13s/^# \?//p' "$0" >&2
  exit 2
fi
archive=$1
shift
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
name=$(basename "$archive" .tar.xz)
bundle=$stage/$name
mkdir -p "$bundle/bin" "$bundle/lib"

theirs='^(linux-vdso|ld-linux.*|'
theirs+='lib(c|m|dl|rt|pthread|resolv|util|stdc\+\+|gcc_s|gomp|cu.*|nv.*))\.so'
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
# Runs a command with the programs of bin/ in PATH and with the shared libraries of lib/.
here=$(cd "$(dirname "$0")" && pwd)
export PATH=$here/bin:$PATH
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}:/usr/local/cuda/lib64
exec "$@"
RUN
chmod +x "$bundle/run"

# The xz dictionary is large enough to span several programs, because programs of one build share
# most of their code.
mkdir -p "$(dirname "$archive")"
XZ_OPT='--lzma2=preset=3,dict=128MiB' tar -cJf "$archive" -C "$stage" "$name"
bytes=$(stat -c %s "$archive")
tenths=$((bytes * 10 / 1048576))
echo "$archive: $((tenths / 10)).$((tenths % 10)) MiB, of $((max_mib)) allowed"
if [ "$bytes" -gt $((max_mib * 1048576)) ]; then
  echo "more than $max_mib MiB" >&2
  exit 1
fi
